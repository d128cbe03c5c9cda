"""What the gate of a cluster knows of each server: who may ask, how much at once, for how long, and where it is logged.

Drivers write it into the key-value store of Ray's GCS, the gate reads it from there; so keys and limits change while requests run, and a
server that is gone is closed. There are digests of keys in it, never keys.
"""

import hashlib
import hmac
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from crossmesh.compat.ray_core import kv_delete, kv_get, kv_list, kv_put

SPACE = b"crossmesh-serve"
"""Our part of the store."""
_PLACE = b"place"
_SERVER = b"server:"
_WAY = b"way:"


@dataclass(frozen=True)
class Admission:
    """The rules for the requests of one server."""

    prefix: str
    """First part of its paths: empty, or `/<name>`."""
    keys: Mapping[str, str]
    """SHA-256 of each key that is taken, by its name in the log; empty: no key is asked for."""
    capacity: int
    """Requests that may compute or wait at once."""
    timeout_s: float
    log: str
    """File of the access log."""
    log_prompts: bool = False
    owner: str = ""
    """The run that started it; another one's has replaced it."""

    def holds(self, path: str) -> bool:
        """Whether a request to `path` is for this server."""
        return path == self.prefix or path.startswith(f"{self.prefix}/")

    def key_of(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """Return the name of the key in `headers` (`Authorization: Bearer <key>`, once), or None when it is not taken."""
        if not self.keys:
            return "anonymous"
        offered = [value for name, value in headers if name.lower() == b"authorization"]
        if len(offered) != 1:
            return None
        scheme, _, key = offered[0].partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        digest, found = hashlib.sha256(key.strip()).hexdigest(), None
        # All are compared, each in constant time: how long it takes tells nothing.
        for name, known in self.keys.items():
            if hmac.compare_digest(digest, known):
                found = name
        return found


@dataclass(frozen=True)
class Place:
    """Where the one HTTP proxy of a cluster listens."""

    host: str
    port: int
    tls_cert: str = ""
    tls_key: str = field(default="", repr=False)
    proxy: str = ""
    """Name of the proxy that listens there, which it says of itself."""

    def same_address(self, other: "Place") -> bool:
        """Whether it is the same host, port and certificate."""
        return replace(self, proxy="") == replace(other, proxy="")


def application_name(name: str) -> str:
    """Ray Serve's name of the server called `name` (`serve.name`)."""
    return f"crossmesh-{name}" if name else "crossmesh"


def server_name(application: str) -> str:
    """The name of the server that Ray Serve calls `application`."""
    return application.removeprefix("crossmesh").removeprefix("-")


def for_path(admissions: Iterable[Admission], path: str) -> Admission | None:
    """The server that `path` belongs to: the one with the longest prefix, as Ray Serve routes it."""
    return max((one for one in admissions if one.holds(path)), key=lambda one: len(one.prefix), default=None)


def read_admissions() -> dict[str, Admission]:
    """Return the servers of this cluster by name. Blocks for a round trip to the GCS."""
    found = {}
    for key in kv_list(SPACE, _SERVER):
        content = kv_get(SPACE, key)
        if content is not None:  # It went between the two calls.
            found[key.removeprefix(_SERVER).decode()] = Admission(**json.loads(content))
    return found


def write_admission(name: str, admission: Admission | None) -> None:
    """Open the server `name` under these rules; None closes it."""
    _write(_SERVER + name.encode(), None if admission is None else asdict(admission))


def read_place() -> Place | None:
    """Where the servers of this cluster are found; None when none of ours was started."""
    content = kv_get(SPACE, _PLACE)
    return None if content is None else Place(**json.loads(content))


def claim_place(place: Place) -> bool:
    """Note `place` unless there is one already, and return whether it was noted: of two runs that start at once, one starts Ray Serve."""
    return kv_put(SPACE, _PLACE, json.dumps(asdict(place)).encode(), overwrite=False)


def write_place(place: Place | None) -> None:
    """Note where the servers of this cluster are found; None: nowhere."""
    _write(_PLACE, None if place is None else asdict(place))


def write_way(name: str, replica: str, path: str | None) -> None:
    """Note the socket of the one engine of the server `name` (`direct.py`), on this process's node; None: it takes no more requests."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    _write(_WAY + f"{name}:{replica}".encode(), None if path is None else {"node": node, "path": path, "since": time.time()})


def read_ways() -> dict[str, tuple[str, ...]]:
    """Return the sockets of engines on this node by the prefix of their server: the oldest first, which answers until it is replaced."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    found: dict[str, list[tuple[float, str]]] = {}
    for key in kv_list(SPACE, _WAY):
        content = kv_get(SPACE, key)
        if content is None:
            continue
        way = json.loads(content)
        name = key.removeprefix(_WAY).decode().partition(":")[0]
        if way["node"] == node:
            found.setdefault(f"/{name}" if name else "", []).append((way["since"], way["path"]))
    return {prefix: tuple(path for _, path in sorted(paths)) for prefix, paths in found.items()}


def forget_ways(name: str) -> None:
    """Forget the sockets of a server that is removed: an engine that was killed has not done it."""
    for key in kv_list(SPACE, _WAY + f"{name}:".encode()):
        _write(key, None)


def _write(key: bytes, value: Mapping[str, Any] | None) -> None:
    if value is None:
        kv_delete(SPACE, key)
    else:
        kv_put(SPACE, key, json.dumps(value).encode())
