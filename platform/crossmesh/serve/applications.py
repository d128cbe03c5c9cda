"""Ray Serve of one cluster: started once, holding one application a server, stopped with the last of them.

A server that is deployed again is replaced without a gap: Serve starts the new engine beside the old one, sends it all new requests once
it is ready, and lets the old one finish. When the new one fails, the old one stays. The driver imports Ray Serve only (checked: neither
torch nor vllm comes with it).
"""

import logging
import pickle
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from crossmesh.compat.ray_core import head_resource, kv_get, kv_put
from crossmesh.compat.ray_serve import ask_controller_to_stop, controller, is_bind_failure, set_version
from crossmesh.config.serving import ServeSpec
from crossmesh.environments import environment, package_root
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.files import canonical_json, digest_text
from crossmesh.ports import free_port, port_taken
from crossmesh.serve.admission import (
    SPACE,
    Place,
    application_name,
    claim_place,
    forget_ways,
    read_admissions,
    read_place,
    write_admission,
    write_place,
)
from crossmesh.serve.asking import get, origin_of
from crossmesh.serve.gate import PROXY_HEADER, PROXY_HOOK, PROXY_VARIABLE, REFRESH_S
from crossmesh.serve.loading import HotLoading
from crossmesh.serve.vllm.settings import EngineSettings
from crossmesh.track.provenance import LIBRARIES, library_versions

DEPLOYMENT = "engine"

_DEPLOYED = b"deployed:"
_POLL_S = 0.5
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0
_ANSWER_TIMEOUT_S = 20.0
_HEAD_SHARE = 0.001
"""Enough of the head node's own resource to be sent there."""


def running_applications() -> tuple[str, ...]:
    """Names of Ray Serve's applications on this cluster."""
    from ray import serve

    return tuple(serve.status().applications)


def ensure_serve(wanted: Place, *, anywhere: bool = False) -> Place:
    """Start Ray Serve at `wanted`, or return where it runs already; port 0 is a free one, or the one that it has.

    Raises `InputError` for a Ray Serve that is not ours or listens elsewhere (unless it may be `anywhere`), and for a port that is taken.
    """
    from ray import serve

    if not serve.status().proxies:
        chosen = replace(wanted, port=wanted.port or free_port(wanted.host), proxy=uuid.uuid4().hex)
        if claim_place(chosen) or not _appears():
            write_place(chosen)
            _start(chosen)
            return chosen
    place = read_place()
    if place is None:
        raise InputError(
            "Ray Serve already runs on this Ray cluster, with its own port and gate. Stop that server first, or use another cluster."
        )
    if not anywhere and not replace(wanted, port=wanted.port or place.port).same_address(place):
        raise InputError(
            f"The servers of this Ray cluster are at {place.host}:{place.port}{' with TLS' if place.tls_cert else ''} and share host, port "
            f"and certificate. Give the same ones, with serve.port={place.port} or 0, or stop those servers first."
        )
    return place


def check_port(wanted: Place) -> None:
    """Raise `InputError` when another process keeps Ray Serve from listening at `wanted` alone; a Ray Serve that runs is asked later."""
    from ray import serve

    if wanted.port and not serve.status().proxies and (holder := _holder(wanted)):
        raise taken_port(wanted.host, wanted.port, holder)


def check_local_port(host: str, port: int) -> None:
    """The same for a Ray that will be started on this machine, before it is."""
    if port and (holder := _asked(host, port)):
        raise taken_port(host, port, holder)


def taken_port(host: str, port: int, holder: str) -> InputError:
    """What is said of a port on which somebody else listens."""
    return InputError(
        f"serve.port={port}: the port of {host} is taken by {holder}. Give another, or serve.port=0 for any free one; or end that process."
    )


def _asked(host: str, port: int) -> str | None:
    try:
        return port_taken(host, port)
    except OSError as error:
        raise InputError(
            f"serve.host={host!r} is not an address of this machine ({error}). Give one of its own, e.g. 127.0.0.1."
        ) from error


def _holder(wanted: Place) -> str | None:
    """Who has the port of `wanted` on the head node, where the proxy listens."""
    import ray

    head = _head_node()
    if head is None or head["NodeID"] == ray.get_runtime_context().get_node_id():
        return _asked(wanted.host, wanted.port)
    task = ray.remote(_asked).options(
        num_cpus=0, max_retries=0, resources={head_resource(): _HEAD_SHARE}, runtime_env={"env_vars": {"PYTHONPATH": str(package_root())}}
    )
    try:
        found: str | None = ray.get(task.remote(wanted.host, wanted.port))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, CrossmeshError):
            raise error.cause from None
        raise
    return found


def _head_node() -> dict[str, Any] | None:
    import ray

    return next((node for node in ray.nodes() if node["Alive"] and head_resource() in node["Resources"]), None)


def reachable_host(place: Place) -> str:
    """The address at which this machine reaches the proxy, which listens on the head node."""
    import ray

    if place.host not in ("0.0.0.0", "::"):  # noqa: S104
        return place.host
    head = _head_node()
    if head is not None and head["NodeID"] != ray.get_runtime_context().get_node_id():
        address: str = head["NodeManagerAddress"]
        return address
    return "127.0.0.1" if place.host == "0.0.0.0" else "::1"  # noqa: S104


def _appears() -> bool:
    """Wait for the Ray Serve that another run is starting; False when it does not come."""
    from ray import serve

    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if serve.status().proxies:
            return True
        time.sleep(_POLL_S)
    return False


def _start(place: Place) -> None:
    from ray import serve

    variables = {
        "PYTHONPATH": str(package_root()),
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": PROXY_HOOK,
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
        PROXY_VARIABLE: place.proxy,
    }
    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # What it has to say, `on_progress` says.
    tls = {"ssl_keyfile": place.tls_key, "ssl_certfile": place.tls_cert} if place.tls_cert else {}
    try:
        # Without servicer functions Serve starts no gRPC proxy.
        serve.start(
            http_options={"host": place.host, "port": place.port, **tls},
            proxy_location="HeadOnly",
            controller_options={"runtime_env": {"env_vars": variables}},
        )
        _check_own(place)
    except BaseException as error:
        write_place(None)
        _stop()
        if is_bind_failure(error):
            raise taken_port(place.host, place.port, _holder(place) or "a process that has just ended") from error
        raise


def _check_own(place: Place) -> None:
    """Raise `InputError` unless it is our proxy that answers at `place`: of two that begin to listen at once, one does not."""
    url = f"{origin_of(place, reachable_host(place))}/-/healthz"
    deadline = time.monotonic() + _ANSWER_TIMEOUT_S
    while True:
        try:
            answer = get(url, None, place.tls_cert)
        except OSError as error:
            if time.monotonic() < deadline:
                time.sleep(_POLL_S)
                continue
            raise InputError(
                f"serve.host={place.host}: this machine does not reach {url} ({error}). Ray Serve listens on the head node of "
                "the cluster: give an address of that node which this machine reaches, or run the job there (ray job submit)."
            ) from error
        if answer.headers.get(PROXY_HEADER.decode()) == place.proxy:
            return
        raise taken_port(place.host, place.port, _holder(place) or "another server, which answers there")


def deploy(settings: EngineSettings, name: str, loading: HotLoading) -> None:
    """Tell Ray Serve to run the engine of `settings` as the server `name`, in place of the one that has this name."""
    from ray import serve

    from crossmesh.serve.replica import ModelServer

    runtime_env = environment(settings.kind).with_variables(**settings.variables).runtime_env
    options: dict[str, Any] = dict(settings.deployment)
    options["ray_actor_options"] = {**options["ray_actor_options"], "runtime_env": runtime_env}
    in_workers = replace(settings, llm_config={**settings.llm_config, "runtime_env": runtime_env})
    deployment = serve.deployment(ModelServer, name=DEPLOYMENT, **options)
    # The same engine is the same version: deployed again it is left running. Serve's own versions are random.
    set_version(deployment, digest_text(canonical_json([asdict(settings), repr(loading), library_versions(LIBRARIES)]))[:16])
    target = serve.RunTarget(deployment.bind(in_workers, loading), name=application_name(name), route_prefix=f"/{name}")
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


def remember(name: str, settings: EngineSettings, loading: HotLoading) -> None:
    """Note what the server `name` runs, for `restore`."""
    kv_put(SPACE, _DEPLOYED + name.encode(), pickle.dumps((settings, loading)))


def restore(name: str) -> None:
    """Deploy what the server `name` ran before a deployment that did not succeed: engines that still run are kept, new ones go."""
    content = kv_get(SPACE, _DEPLOYED + name.encode())
    if content is not None:
        settings, loading = pickle.loads(content)  # noqa: S301  # written by `remember`, in a store behind the cluster's token
        deploy(settings, name, loading)


def wait_until_running(name: str, deadline: float, spec: ServeSpec, on_progress: Callable[[str], None]) -> None:
    """Return when the server `name` runs; raise when it failed or `deadline` (monotonic seconds) has passed."""
    from ray import serve

    began = said = time.monotonic()
    on_progress("starting the engine")
    while True:
        application = serve.status().applications.get(application_name(name))
        state = application.status if application else "NOT_STARTED"
        if application and (state == "RUNNING" or _taken_over(application)):
            return
        if application and state in {"DEPLOY_FAILED", "UNHEALTHY"}:
            reasons = [deployment.message for deployment in application.deployments.values() if deployment.message] or [application.message]
            raise CrossmeshError("The engine did not start.\n" + "\n".join(reasons))
        now = time.monotonic()
        if now > deadline:
            raise CrossmeshError(
                f"The engine was not ready within serve.start_timeout_s={spec.start_timeout_s:g} s. Raise it, look at Ray's logs, and see "
                "that the cluster has room for it (a server that is replaced runs until the new one is ready)."
            )
        if now - said >= 10:
            said = now
            on_progress(f"starting the engine ({now - began:.0f} s)")
        time.sleep(_POLL_S)


def _taken_over(application: Any) -> bool:
    """Whether all new engines run and the old ones, which take no new requests, are only finishing what they have."""
    states: Counter[str] = Counter()
    for deployment in application.deployments.values():
        for state, count in deployment.replica_states.items():
            states[str(getattr(state, "value", state))] += count
    return states["STOPPING"] > 0 and states["RUNNING"] > 0 and states.total() == states["STOPPING"] + states["RUNNING"]


def remove(name: str) -> None:
    """End the server `name`, and Ray Serve with the last one. Requests that run are ended; a second call does nothing."""
    import ray
    from ray import serve

    if not ray.is_initialized():
        return
    if name in read_admissions():
        write_admission(name, None)
        forget_ways(name)
        time.sleep(2 * REFRESH_S)  # The gate ends its requests: engines that are idle stop at once.
    with suppress(ray.exceptions.RayActorError):
        if set(running_applications()) - {application_name(name)} and read_place() is not None:
            serve.delete(application_name(name))
            if running_applications():
                return
    write_place(None)
    _stop()


def _stop() -> None:
    """End Ray Serve and wait until it is gone.

    `serve.shutdown` alone waits inside the controller that it kills, and Ray then prints to stdout that a task of ours failed; so the
    controller is asked first, and waited for by its name.
    """
    import ray
    from ray import serve

    deadline = time.monotonic() + _STOP_TIMEOUT_S
    with suppress(ValueError, ray.exceptions.RayActorError):  # No such actor: gone.
        ray.get(ask_controller_to_stop())
        while time.monotonic() < deadline:
            controller()
            time.sleep(_POLL_S)
    # Forgets the client of this process; also the forceful way, should the controller still be there.
    serve.shutdown()
