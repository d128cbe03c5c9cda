"""Whether what jobs ask over the network answers: MLflow and the Hugging Face hub. Nothing is written to either."""

import os
import shlex
import socket
import sqlite3
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.doctor.finding import Finding, fault, note, ok
from crossmesh.errors import InputError
from crossmesh.track.masking import mask_secrets
from crossmesh.track.mlflow.client import StoreAddress, store_address

_TIMEOUT_S = 3.0
_HUB = "https://huggingface.co"
_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def check_tracking(spec: ExperimentSpec) -> Iterator[Finding]:
    """MLflow: the server or database of `tracking.uri`, or the sqlite file under `storage.root`."""
    if "mlflow" not in spec.tracking.trackers:
        yield ok("MLflow", f"tracking.trackers={list(spec.tracking.trackers)} does not use it")
        return
    try:
        address = store_address(spec.tracking, spec.storage)
    except InputError as error:
        yield fault("MLflow", str(error), "tracking.uri=    # tracks under storage.root")
        return
    yield database_finding(address.database) if address.database is not None else server_finding(address, spec.storage.path)


def database_finding(file: Path) -> Finding:
    """Whether a sqlite file is MLflow's and can be read; one that does not exist is made by the first job."""
    if not file.exists():
        return ok("MLflow", f"{file} will be made by the first job")
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=_TIMEOUT_S)) as store:
            runs = store.execute("SELECT count(*) FROM runs").fetchone()[0]
    except sqlite3.Error as error:
        quoted = shlex.quote(str(file))
        return fault(
            "MLflow", f"{file} cannot be read as MLflow's database: {error}", f"mv {quoted} {quoted}.damaged    # a new one is made"
        )
    return ok("MLflow", f"{runs} runs in {file}")


def server_finding(address: StoreAddress, root: Path) -> Finding:
    """Whether the tracking server or database answers within 3 s."""
    parts = urlsplit(address.uri)
    scheme, host = parts.scheme.partition("+")[0], parts.hostname or ""
    if scheme in ("http", "https"):
        status = asked(f"{address.uri.rstrip('/')}/health", "GET")
        if status == 200:
            return ok("MLflow", f"{address.shown} answers")
        if status in (401, 403):
            return note(
                "MLflow",
                f"{address.shown} answers with status {status}",
                "export MLFLOW_TRACKING_USERNAME=... MLFLOW_TRACKING_PASSWORD=...",
            )
        said = f"status {status}" if isinstance(status, int) else status
    elif scheme in _PORTS:
        said = _connected(host, parts.port or _PORTS[scheme])
        if not said:
            return ok("MLflow", f"{address.shown} takes connections")
    else:
        return note("MLflow", f"{address.shown} was not asked: only http(s) and databases are")
    store = shlex.quote(f"sqlite:///{root}/mlflow.db")
    start = f"{shlex.quote(sys.executable)} -m mlflow server --host 127.0.0.1 --port {parts.port or 5000} --backend-store-uri {store}"
    mend = (
        start if host in _LOOPBACK and scheme in ("http", "https") else "tracking.uri=    # tracks under storage.root; or start that server"
    )
    return fault("MLflow", f"{address.shown} does not answer: {said}", mend)


def check_hub(spec: ExperimentSpec) -> Iterator[Finding]:
    """The Hugging Face hub, from which `hf://` sources come."""
    yield hub_finding(os.environ, hub_sources(spec))


def hub_sources(spec: ExperimentSpec) -> tuple[str, ...]:
    """What `spec` takes from the hub."""
    served = [one.partition(":")[2] for one in spec.serve.adapters]
    named = (spec.model.weights, spec.data.source, spec.lora.adapter, *served)
    return tuple(one for one in named if one.startswith("hf://"))


def hub_finding(environ: Mapping[str, str], sources: tuple[str, ...]) -> Finding:
    """Whether the hub answers within 3 s; a fault only where `sources` come from it and may not come from the cache alone."""
    address = environ.get("HF_ENDPOINT") or _HUB
    status = asked(address, "HEAD")
    offline = environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    if isinstance(status, int):
        found = f"{mask_secrets(address)} answers"
        return (
            note("hub", f"{found}, but HF_HUB_OFFLINE is set: hf:// sources come from the cache", "unset HF_HUB_OFFLINE")
            if offline
            else ok("hub", found)
        )
    found = f"{mask_secrets(address)} is not reachable ({status})"
    if offline:
        return note("hub", f"{found}; HF_HUB_OFFLINE is set: hf:// sources come from the cache")
    mend = "export HF_HUB_OFFLINE=1    # takes hf:// sources from the cache; or HTTPS_PROXY=http://..."
    if not sources:
        return note("hub", f"{found}; nothing that was chosen comes from it", mend)
    return fault("hub", f"{found}: {', '.join(sources)} cannot be had where the cache has it not", mend)


def asked(url: str, method: str) -> int | str:
    """Status of a request, or why there is no answer."""
    request = urllib.request.Request(url, method=method)  # noqa: S310  # Addresses are the user's own settings.
    if request.type not in ("http", "https"):
        return "it is no http(s) address"
    proxies = [urllib.request.ProxyHandler({})] if urlsplit(url).hostname in _LOOPBACK else []
    try:
        with urllib.request.build_opener(*proxies).open(request, timeout=_TIMEOUT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ValueError) as error:
        return mask_secrets(str(getattr(error, "reason", None) or error))


def _connected(host: str, port: int) -> str:
    """Empty when somebody listens there, or why nobody can be reached."""
    try:
        socket.create_connection((host, port), timeout=_TIMEOUT_S).close()
    except OSError as error:
        return str(error.strerror or error)
    return ""
