"""Starting and stopping a server from the driver: Ray Serve on this cluster, one application, one engine.

The driver imports Ray Serve only (checked: neither torch nor vllm comes with it); the engine is built inside the replica, in the
worker environment of the hardware. A Ray session must be there (`cluster.ray_session`); this module starts and stops Serve in it.
"""

import json
import logging
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from crossmesh.environments import environment, package_root
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.serve.adapters import ServedAdapter, ServedBase
from crossmesh.serve.engine import EngineSettings, engine_settings
from crossmesh.serve.gate import PROXY_HOOK, key_digest, server_key
from crossmesh.serve.loading import HotLoading
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.spec.serving import ServeSpec

APPLICATION = "crossmesh"
DEPLOYMENT = "engine"

_POLL_S = 0.5
_PROBE_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 30.0
_ANONYMOUS = "anonymous"
"""The `openai` client insists on a key; a server without a gate takes any."""


@dataclass(frozen=True)
class Server:
    """A running server. Use it as a context manager, or call `stop`."""

    base_url: str
    """OpenAI base URL, `http://host:port/v1`."""
    api_key: str = field(repr=False)
    models: tuple[str, ...]
    """Model names, the base first."""
    settings: EngineSettings = field(repr=False)
    start_s: float
    """Seconds from the call to the first answer."""
    fingerprint: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What `GET /v1/fingerprint` said then."""

    def stop(self) -> None:
        """End the application, the engine's processes and Ray Serve; Ray itself stays. A second call does nothing."""
        _stop_serve()

    def __enter__(self) -> "Server":
        """Return the server itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop it."""
        self.stop()


def _silent(message: str) -> None:
    pass


def start_server(
    spec: ExperimentSpec,
    base: ServedBase,
    adapters: Sequence[ServedAdapter],
    *,
    sources: tuple[Path, ...] = (),
    on_progress: Callable[[str], None] = _silent,
) -> Server:
    """Serve `base` and `adapters`, each by its name; return once the server answers.

    While it runs, clients may load further adapters from `storage.root` and from the folders `sources`, and unload any
    (`loading_vllm.py`). `on_progress` gets one line at each change and every ten seconds. Raises `InputError` for what the spec or the
    cluster cannot do, and `CrossmeshError` with the last lines of the engine's output when it fails or is not ready within
    `serve.start_timeout_s`. On any error, Ctrl-C included, nothing is left running.
    """
    import ray
    from ray import serve

    began = time.monotonic()
    settings = engine_settings(spec, base, adapters)
    key = server_key(spec.serve, spec.storage.path)
    if not ray.is_initialized():
        raise CrossmeshError("A server needs a Ray session. Open one with `crossmesh.cluster.ray_session` around it.")
    if serve.status().proxies:
        raise InputError(
            "Ray Serve already runs on this Ray cluster, with its own port and gate. Stop that server first, or use another cluster."
        )
    port = spec.serve.port or _free_port(spec.serve.host)
    server = Server(f"http://{_reachable(spec.serve.host)}:{port}/v1", key or _ANONYMOUS, settings.models, settings, 0.0)
    try:
        on_progress("starting Ray Serve")
        _start_serve(spec.serve.host, port)
        loading = HotLoading(base, (spec.storage.path, *sources), settings.engine_kwargs.get("max_lora_rank", 0))
        _deploy(settings, spec, loading, None if key is None else key_digest(key))
        _wait(began + spec.serve.start_timeout_s, spec.serve, on_progress)
        found = _probe(server, gated=key is not None)
    except BaseException:
        server.stop()
        raise
    return replace(server, start_s=time.monotonic() - began, fingerprint=found)


def _stop_serve() -> None:
    """End Ray Serve and wait until it is gone.

    `serve.shutdown` alone waits inside the controller that it kills, and Ray then prints to stdout that a task of ours failed; so the
    controller is asked first, and waited for by its name.
    """
    import ray
    from ray import serve
    from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

    if not ray.is_initialized():
        return
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    with suppress(ValueError, ray.exceptions.RayActorError):  # No such actor: gone.
        ray.get(ray.get_actor(SERVE_CONTROLLER_NAME, SERVE_NAMESPACE).graceful_shutdown.remote(wait=False))
        while time.monotonic() < deadline:
            ray.get_actor(SERVE_CONTROLLER_NAME, SERVE_NAMESPACE)
            time.sleep(_POLL_S)
    # Forgets the client of this process; also the forceful way, should the controller still be there.
    serve.shutdown()


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.bind((host, 0))
        port: int = listener.getsockname()[1]
        return port


def _reachable(host: str) -> str:
    """The address that this machine's clients use for a server bound to `host`."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"[{host}]" if ":" in host else host


def _start_serve(host: str, port: int) -> None:
    from ray import serve

    variables = {"PYTHONPATH": str(package_root()), "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": PROXY_HOOK}
    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # What it has to say, `on_progress` says.
    try:
        # Without servicer functions Serve starts no gRPC proxy.
        serve.start(
            http_options={"host": host, "port": port},
            proxy_location="HeadOnly",
            controller_options={"runtime_env": {"env_vars": variables}},
        )
    except Exception as error:
        if "Failed to bind" in str(error):
            raise InputError(f"serve.port={port}: the port of {host} is taken. Give another, or 0 for any free one.") from error
        raise


def _deploy(settings: EngineSettings, spec: ExperimentSpec, loading: HotLoading, digest: str | None) -> None:
    from ray import serve

    from crossmesh.serve.replica import ModelServer

    runtime_env = environment(settings.kind, spec.hardware.slice.device).with_variables(**settings.variables).runtime_env
    options: dict[str, Any] = dict(settings.deployment)
    options["ray_actor_options"] = {**options["ray_actor_options"], "runtime_env": runtime_env}
    # Access logs name routes, status and time only; prompts and headers never enter them.
    in_workers = replace(settings, llm_config={**settings.llm_config, "runtime_env": runtime_env})
    application = serve.deployment(ModelServer, name=DEPLOYMENT, **options).bind(in_workers, loading, digest)
    target = serve.RunTarget(application, name=APPLICATION, route_prefix="/")
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


def _wait(deadline: float, spec: ServeSpec, on_progress: Callable[[str], None]) -> None:
    """Return when the application runs; raise when it failed or `deadline` (monotonic seconds) has passed."""
    from ray import serve

    began = said = time.monotonic()
    on_progress("starting the engine")
    while True:
        application = serve.status().applications.get(APPLICATION)
        state = application.status if application else "NOT_STARTED"
        if application and state == "RUNNING":
            return
        if application and state in {"DEPLOY_FAILED", "UNHEALTHY"}:
            reasons = [deployment.message for deployment in application.deployments.values() if deployment.message] or [application.message]
            raise CrossmeshError("The engine did not start.\n" + "\n".join(reasons))
        now = time.monotonic()
        if now > deadline:
            raise CrossmeshError(
                f"The engine was not ready within serve.start_timeout_s={spec.start_timeout_s:g} s. Raise it, or look at Ray's logs."
            )
        if now - said >= 10:
            said = now
            on_progress(f"starting the engine ({now - began:.0f} s)")
        time.sleep(_POLL_S)


def _get(url: str, key: str | None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers={} if key is None else {"Authorization": f"Bearer {key}"})  # noqa: S310  # our own URL
    try:
        with urllib.request.urlopen(request, timeout=_PROBE_TIMEOUT_S) as answer:  # noqa: S310
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def _probe(server: Server, *, gated: bool) -> dict[str, Any]:
    """Return the server's fingerprint, after making sure that it has its models and, when it has a gate, is closed to others."""
    origin = server.base_url.removesuffix("/v1")
    if gated:
        for path in ("/v1/models", "/-/routes"):
            status, _ = _get(origin + path, None)
            if status != 401:
                raise CrossmeshError(f"The server answered {path} without a key (status {status} instead of 401): it is stopped.")
    status, body = _get(f"{server.base_url}/models", server.api_key)
    listed = {card["id"] for card in json.loads(body)["data"]} if status == 200 else set()
    if listed != set(server.models):
        raise CrossmeshError(f"The server lists the models {sorted(listed)} (status {status}) instead of {sorted(server.models)}.")
    status, body = _get(f"{server.base_url}/fingerprint", server.api_key)
    if status != 200:
        raise CrossmeshError(f"The server does not say what it is: /v1/fingerprint answered with status {status}.")
    found: dict[str, Any] = json.loads(body)
    return found
