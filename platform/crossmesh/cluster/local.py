"""A Ray on this machine that lives as long as the job.

It listens on 127.0.0.1, has token authentication on, a short temporary folder of its own, and leaves nothing behind (`ray_cleanup`).
"""

import functools
import logging
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import ray

from crossmesh.compat.ray_core import LOOPBACK_ARGUMENTS, is_slow_start, loopback_addresses_kept
from crossmesh.config.services import StorageSpec
from crossmesh.console import Console
from crossmesh.errors import CrossmeshError
from crossmesh.ray_cleanup import clear, end_processes, guarded
from crossmesh.signals import signal_handlers

_NICENESS = "RAY_worker_niceness"

_OBJECT_STORE_BYTES = 512 << 20
"""Nothing we send through Ray is large: weights and data travel as files."""


@contextmanager
def local_ray(storage: StorageSpec) -> Iterator[Path]:
    """Start Ray on this machine, connect to it, and end it and every process of it; yields its temporary folder."""
    Console().say("starting Ray on this machine")
    secure_token()
    tempfile.gettempdir()  # Python remembers the first answer: for this process it stays the user's, beyond the session.
    folder = Path(tempfile.mkdtemp(prefix="cm-", dir="/tmp"))  # Unix sockets in it must stay under 108 characters.
    scratch = folder / "tmp"  # Engines leave sockets and files where temporary files go: they go with the session.
    scratch.mkdir()
    with guarded(folder):
        try:
            variables = {"RAY_TMPDIR": str(folder), "TMPDIR": str(scratch), "RAY_USAGE_STATS_ENABLED": "0", _NICENESS: _niceness()}
            with loopback_only(), _variables(variables):
                with _group_of_their_own():
                    _start(folder)
                yield folder
        except (CrossmeshError, KeyboardInterrupt):
            raise
        except BaseException:
            _keep_logs(folder, storage.path)
            raise
        finally:
            with _uninterrupted():
                ray.shutdown()
                clear(folder)


def _niceness() -> str:
    """What is added to the niceness of workers: nothing, unless the user says so.

    Ray's own 15 leaves an engine a thirtieth of a core that any other process wants, and every process of Ray goes first.
    """
    return os.environ.get(_NICENESS, "0")


def secure_token() -> None:
    """Make sure that the token file of Ray exists and that only its owner reads it (Ray itself writes it readable for all).

    Nothing is done when the user gave the token otherwise or turned authentication off.
    """
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH") or os.environ.get("RAY_AUTH_MODE") == "disabled":
        return
    path = Path.home() / ".ray" / "auth_token"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        new = path.with_name(f".auth_token.{secrets.token_hex(8)}")
        new.touch(mode=0o600)
        new.write_text(secrets.token_hex(32), encoding="ascii")
        with suppress(FileExistsError):  # Another job was faster: its token is the token.
            path.hardlink_to(new)
        new.unlink()
    path.chmod(0o600)


def _keep_logs(folder: Path, root: Path) -> None:
    """Copy the logs of a cluster whose job died to `root`/logs; a failure to do so must not hide why it died."""
    session = folder / "ray" / "session_latest" / "logs"
    with suppress(OSError, shutil.Error):
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        shutil.copytree(session, root / "logs" / f"ray-{stamp}-{os.getpid()}", ignore_dangling_symlinks=True)


def _start(folder: Path) -> None:
    """Start Ray under `folder` (`RAY_TMPDIR`) and connect to it.

    Ray gives a new node 30 s to register and then gives up, leaving what it has started; on a machine that is busy with other things
    that happens, so it is tried again.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)  # Before init: it announces, as a warning, that authentication is on.
    for tries_left in (2, 1, 0):
        try:
            ray.init(
                address="local",
                num_cpus=max(2, len(os.sched_getaffinity(0))),  # A worker that takes one still leaves one for its helpers.
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **LOOPBACK_ARGUMENTS,
            )
            return
        except Exception as error:
            if tries_left == 0 or not is_slow_start(error):
                raise
            ray.shutdown()
            end_processes(folder, grace_s=0.0)


@contextmanager
def loopback_only() -> Iterator[None]:
    """Keep every port of a local Ray on 127.0.0.1.

    That a node address of 127.0.0.1 is kept is set in this process as well as in the environment of those that follow. Ray's metrics
    exporter listens on all interfaces whatever the address, so it is turned off.
    """
    with loopback_addresses_kept(), _variables({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_enable_metrics_collection": "0"}):
        yield


_detached = False
"""Whether processes that are started now leave this process group."""


def _leave_group() -> None:
    if _detached:
        os.setpgid(0, 0)


@functools.cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_leave_group)


@contextmanager
def _group_of_their_own() -> Iterator[None]:
    """Start Ray's processes in process groups of their own.

    A signal to the group of the job, as `timeout`, Slurm and a terminal send it, then reaches the job alone, which ends the run with a
    checkpoint and Ray after it. Python calls what is registered here in each child that runs a `preexec_fn`, which Ray's do.
    """
    global _detached
    _watch_forks()
    _detached = True
    try:
        yield
    finally:
        _detached = False


@contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the block: Ray and its processes read them when they start."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let the clean-up finish: it is bounded, and a second Ctrl-C in it would leave processes behind."""
    with signal_handlers({signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}):
        yield
