"""The Ray that a job runs on: the user's cluster when `RAY_ADDRESS` names one, otherwise a local one that lives as long as the job.

Nothing here knows what runs on the cluster.
"""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import ray

from crossmesh.cluster.head_watch import watched
from crossmesh.cluster.local import local_ray, loopback_only
from crossmesh.compat.ray_core import newest_local_address, visible_chips
from crossmesh.config.services import StorageSpec
from crossmesh.console import Console
from crossmesh.errors import InputError
from crossmesh.hardware.devices import Cpu, Device, Gpu
from crossmesh.signals import terminate_like_interrupt

_CONNECT_S = 10.0


@dataclass(frozen=True)
class Session:
    """A Ray that is ready."""

    address: str
    """GCS address, host:port."""
    local: bool
    """Whether it was started for this job."""
    folder: Path | None
    """Temporary folder of a local Ray."""


@contextmanager
def ray_session(storage: StorageSpec) -> Iterator[Session]:
    """Yield a connected Ray and undo on exit what this call did; a session inside another one is the outer one.

    Within it SIGTERM raises `KeyboardInterrupt` in the main thread, as Ctrl-C does, so that both end a job the same way. When a job
    dies of anything but a `CrossmeshError` or an interrupt, Ray's logs are kept under `storage.root/logs`.
    """
    if ray.is_initialized():
        yield Session(ray.get_runtime_context().gcs_address, False, None)
        return
    address = users_cluster()
    with _existing(address) if address else _started(storage) as session, watched(session.address), terminate_like_interrupt():
        yield session


@contextmanager
def cluster_session(storage: StorageSpec) -> Iterator[None]:
    """Keep the user's cluster connected, where one is named; a local Ray is started by what needs it, and may not be needed."""
    with ray_session(storage) if users_cluster() else nullcontext():
        yield


def users_cluster() -> str | None:
    """The cluster that the user names; None for a local Ray, which `RAY_ADDRESS=local` asks for in Ray's own words."""
    address = os.environ.get("RAY_ADDRESS")
    return None if address in (None, "", "local") else address


def require_chips(device: Device, chips: int) -> None:
    """Raise `InputError` when Ray will be local and this machine has fewer than `chips` of `device`: they would be waited for without end.

    Needs no Ray yet. A cluster of the user's may still grow, so there nothing is said.
    """
    if isinstance(device, Cpu) or users_cluster() is not None:
        return
    kind = "GPU" if isinstance(device, Gpu) else "TPU"
    found = int(ray.cluster_resources().get(kind, 0)) if ray.is_initialized() else visible_chips(kind)
    if found < chips:
        raise InputError(
            f"hardware: {kind} chips asked for: {chips} ({device.chip}); this machine has {found}. Set RAY_ADDRESS to a Ray cluster "
            "that has them (cluster.yaml starts one), or choose hardware=cpu."
        )


@contextmanager
def _existing(address: str) -> Iterator[Session]:
    """Connect to the user's cluster; leave it running."""
    Console().say(f"connecting to Ray at {address}")
    host = _answering_host(_newest() if address == "auto" else address)
    try:
        # Ray would replace a loopback address by another one of this host, on which a loopback-only cluster does not listen.
        with loopback_only() if host in ("127.0.0.1", "localhost") else nullcontext():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ray.exceptions.AuthenticationError) as error:
        if _token_given() and isinstance(error, ConnectionError):
            raise _no_answer(address, error) from error
        raise _no_token(address) from error
    try:
        yield Session(ray.get_runtime_context().gcs_address, False, None)
    finally:
        ray.shutdown()


def _newest() -> str:
    """What `auto` stands for: the newest Ray that runs on this machine."""
    try:
        return newest_local_address() or "auto"
    except ConnectionError as error:
        raise _no_answer("auto", error) from error


def _answering_host(address: str) -> str:
    """Return the host of `address`, host:port or ray://host:port, after seeing that something listens there.

    Ray itself would try for a quarter of an hour.
    """
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if not (host and separator and port.isdigit()):
        raise InputError(
            f"RAY_ADDRESS={address!r} is not an address. Allowed: host:port, ray://host:port, auto, or local (as when it is unset)."
        )
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except OSError as error:
        raise _no_answer(address, error) from error
    return host


def _no_answer(address: str, error: OSError) -> InputError:
    return InputError(f"RAY_ADDRESS={address!r}: cannot connect to Ray there ({error}). Start it, or unset RAY_ADDRESS for a local one.")


def _token_given() -> bool:
    """Whether this process would send a token."""
    return os.environ.get("RAY_AUTH_MODE") == "token" or any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))


def _no_token(address: str) -> InputError:
    return InputError(
        f"RAY_ADDRESS={address!r}: something listens there and does not let this job in. A cluster with token authentication needs "
        "RAY_AUTH_MODE=token here, and its token in RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token."
    )


@contextmanager
def _started(storage: StorageSpec) -> Iterator[Session]:
    """Start Ray on this machine; end it and every process of it."""
    with local_ray(storage) as folder:
        yield Session(ray.get_runtime_context().gcs_address, True, folder)
