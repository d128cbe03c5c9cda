"""Starting, replacing and stopping a server from the driver.

The engine is built inside the replica, in the worker environment of the hardware. A Ray session must be there (`cluster.ray_session`);
what happens to Ray Serve in it is `applications.py`'s.
"""

import json
import secrets
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from crossmesh.cluster.nodes import held_hosts
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.serving import ServeSpec
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.hardware.devices import Tpu
from crossmesh.serve.adapters import ServedAdapter, ServedBase
from crossmesh.serve.admission import Admission, Place, application_name, read_admissions, write_admission
from crossmesh.serve.applications import (
    deploy,
    ensure_serve,
    reachable_host,
    remember,
    remove,
    restore,
    running_applications,
    wait_until_running,
)
from crossmesh.serve.asking import get, origin_of
from crossmesh.serve.keys import admitted_keys, server_key
from crossmesh.serve.loading import HotLoading
from crossmesh.serve.vllm.options import capacity
from crossmesh.serve.vllm.settings import EngineSettings, engine_settings

_SETTLE_S = 30.0
"""How long a server that runs may still answer as the one before: gate and proxy hear of it a moment later."""
_POLL_S = 0.5
_ANONYMOUS = "anonymous"
"""The `openai` client insists on a key; a server without a gate takes any."""


@dataclass(frozen=True)
class Server:
    """A running server. Use it as a context manager, or call `stop`."""

    base_url: str
    """OpenAI base URL, `http://host:port/v1` (`https` with a certificate, `/<name>/v1` with a name)."""
    api_key: str = field(repr=False)
    models: tuple[str, ...]
    """Model names, the base first."""
    settings: EngineSettings = field(repr=False)
    start_s: float
    """Seconds from the call to the first answer."""
    spec: ExperimentSpec = field(repr=False)
    admission: Admission = field(repr=False)
    """Its rules as the gate was told."""
    fingerprint: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What `GET /v1/fingerprint` said when it was ready."""

    def replaced(self) -> bool:
        """Whether another run has put its server in place of this one, or removed it."""
        now = read_admissions().get(self.spec.serve.name)
        return now is None or now.owner != self.admission.owner

    def renew_keys(self) -> "Server":
        """Have keys that were added or revoked count, and return the server with them."""
        keys = admitted_keys(self.spec.serve, self.spec.storage.path)
        if keys == self.admission.keys:
            return self
        renewed = replace(self, admission=replace(self.admission, keys=keys))
        write_admission(self.spec.serve.name, renewed.admission)
        return renewed

    def stop(self) -> None:
        """End the server, and Ray Serve with the last one; Ray itself stays. Nothing is done when another run has replaced it."""
        import ray

        if ray.is_initialized() and not self.replaced():
            remove(self.spec.serve.name)

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
    private: str = "",
) -> Server:
    """Serve `base` and `adapters`, each by its name; return once the server answers.

    With `private`, what it is for, it is the caller's alone: on a free port whatever `serve.port` says, or beside the servers that this
    cluster has, under a name that no other run uses.

    A server with the same `serve.name` on this cluster is replaced: it answers until the new one is ready and finishes what it has then.
    While the server runs, clients may load further adapters from `storage.root` and from the folders `sources`, and unload any
    (`loading_vllm.py`). `on_progress` gets one line at each change and every ten seconds. Raises `InputError` for what the spec or the
    cluster cannot do, and `CrossmeshError` with the last lines of the engine's output when it fails or is not ready within
    `serve.start_timeout_s`. On any error, Ctrl-C included, nothing new is left running, and a server that was to be replaced goes on.
    """
    import ray

    began = time.monotonic()
    if private:
        spec = replace(spec, serve=replace(spec.serve, port=0, name=f"{private}-{secrets.token_hex(4)}"))
    settings = engine_settings(spec, base, adapters)
    key = server_key(spec.serve, spec.storage.path)
    if not ray.is_initialized():
        raise CrossmeshError("A server needs a Ray session. Open one with `crossmesh.cluster.session.ray_session` around it.")
    on_progress("starting Ray Serve")
    place = ensure_serve(place_of(spec.serve), anywhere=bool(private))
    name = spec.serve.name
    before = read_admissions().get(name) if application_name(name) in running_applications() else None
    server = Server(_url(place, name), key or _ANONYMOUS, settings.models, settings, 0.0, spec, _admission(spec))
    loading = HotLoading(base, (spec.storage.path, *sources), settings.engine_kwargs.get("max_lora_rank", 0), spec.serve.most_replicas)
    try:
        with _hosts(spec):
            deploy(settings, name, loading)
            wait_until_running(name, began + spec.serve.start_timeout_s, spec.serve, on_progress)
        write_admission(name, server.admission)
        found = _probe(server, place, gated=key is not None)
    except BaseException:
        if before is None:
            remove(name)
        else:
            restore(name)
            write_admission(name, before)
        raise
    remember(name, settings, loading)
    return replace(server, start_s=time.monotonic() - began, fingerprint=found)


def _hosts(spec: ExperimentSpec) -> AbstractContextManager[object]:
    """Hold the hosts of the TPU slices on which the engines start, so that an autoscaler brings them up."""
    device = spec.hardware.slice.device
    return held_hosts(device, max(1, spec.serve.replicas)) if isinstance(device, Tpu) else nullcontext()


def place_of(serve: ServeSpec) -> Place:
    """Where the spec wants the server."""
    for key in ("tls_cert", "tls_key"):
        path = getattr(serve, key)
        if path and not Path(path).is_file():
            raise InputError(f"serve.{key}={path!r} does not exist. Give a PEM file that this machine can read.")
    return Place(serve.host, serve.port, serve.tls_cert, serve.tls_key)


def _admission(spec: ExperimentSpec) -> Admission:
    serve = spec.serve
    log = spec.storage.path / "serve" / (serve.name or "default") / "access.jsonl"
    return Admission(
        prefix=f"/{serve.name}" if serve.name else "",
        keys=admitted_keys(serve, spec.storage.path),
        capacity=capacity(serve),
        timeout_s=serve.request_timeout_s,
        log=str(log),
        log_prompts=serve.log_prompts,
        owner=uuid.uuid4().hex,
    )


def _url(place: Place, name: str) -> str:
    """The base URL for this machine's clients of a server bound to `place`."""
    return f"{origin_of(place, reachable_host(place))}{f'/{name}' if name else ''}/v1"


def _probe(server: Server, place: Place, *, gated: bool) -> dict[str, Any]:
    """Return the server's fingerprint, after making sure that it has its models and, when it has a gate, is closed to others."""
    deadline = time.monotonic() + _SETTLE_S
    while True:
        answer = get(f"{server.base_url}/models", server.api_key, place.tls_cert)
        listed = {card["id"] for card in json.loads(answer.body)["data"]} if answer.status == 200 else set()
        if listed == set(server.models):
            break
        if time.monotonic() > deadline:
            raise CrossmeshError(
                f"The server lists the models {sorted(listed)} (status {answer.status}) instead of {sorted(server.models)}."
            )
        time.sleep(_POLL_S)
    if gated:
        origin = server.base_url.removesuffix("/v1")
        for path in ("/v1/models", "/-/routes"):
            status = get(origin + path, None, place.tls_cert).status
            if status != 401:
                raise CrossmeshError(f"The server answered {path} without a key (status {status} instead of 401): it is stopped.")
    answer = get(f"{server.base_url}/fingerprint", server.api_key, place.tls_cert)
    if answer.status != 200:
        raise CrossmeshError(f"The server does not say what it is: /v1/fingerprint answered with status {answer.status}.")
    found: dict[str, Any] = json.loads(answer.body)
    return found
