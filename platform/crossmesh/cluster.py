"""The Ray that a job runs on: the user's cluster when `RAY_ADDRESS` names one, otherwise a local one that lives as long as the job.

A local Ray listens on 127.0.0.1, has token authentication on, a short temporary folder of its own, and leaves nothing behind
(`leftovers`). Nothing here knows what runs on the cluster.
"""

import functools
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray._private import ray_constants, services
from ray._private.accelerators import get_accelerator_manager_for_resource
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from crossmesh.autoscaler import failed_launches, said_of
from crossmesh.console import Console
from crossmesh.environments import WorkerEnvironment, environment
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.growth import Growth, read_view
from crossmesh.hardware.devices import Cpu, Device, Gpu, Tpu
from crossmesh.head_watch import watched
from crossmesh.leftovers import clear, end_processes, guarded
from crossmesh.signals import signal_handlers, terminate_like_interrupt
from crossmesh.spec.services import StorageSpec

_Result = TypeVar("_Result")

_CONNECT_S = 10.0

QUIET_S = 60.0
"""How often a person is told what is waited for."""

_WATCH_S = 5.0
"""How often a cluster is looked at while nodes are waited for."""

_NODE_SHARE = 0.001
"""Of a node's custom resource: enough to be sent there, too little to keep anybody else out."""

_NICENESS = "RAY_worker_niceness"

_OBJECT_STORE_BYTES = 512 << 20
"""Nothing we send through Ray is large: weights and data travel as files."""


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
    with _existing(address) if address else _local(storage) as session, watched(session.address), terminate_like_interrupt():
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
    found = int(ray.cluster_resources().get(kind, 0)) if ray.is_initialized() else _chips_here(kind)
    if found < chips:
        raise InputError(
            f"hardware: {kind} chips asked for: {chips} ({device.chip}); this machine has {found}. Set RAY_ADDRESS to a Ray cluster "
            "that has them (cluster.yaml starts one), or choose hardware=cpu."
        )


def _chips_here(kind: str) -> int:
    """Chips that a local Ray will find: those of this machine that this process may see."""
    manager = get_accelerator_manager_for_resource(kind)
    there, visible = int(manager.get_current_node_num_accelerators()), manager.get_current_process_visible_accelerator_ids()
    return there if visible is None else min(there, len(visible))


@contextmanager
def _existing(address: str) -> Iterator[Session]:
    """Connect to the user's cluster; leave it running."""
    Console().say(f"connecting to Ray at {address}")
    host = _answering_host(_found(address) if address == "auto" else address)
    try:
        # Ray would replace a loopback address by another one of this host, on which a loopback-only cluster does not listen.
        with _loopback_only() if host in ("127.0.0.1", "localhost") else nullcontext():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ray.exceptions.AuthenticationError) as error:
        if _token_given() and isinstance(error, ConnectionError):
            raise _no_answer(address, error) from error
        raise _no_token(address) from error
    try:
        yield Session(ray.get_runtime_context().gcs_address, False, None)
    finally:
        ray.shutdown()


def _found(address: str) -> str:
    """What `auto` stands for: the newest Ray that runs on this machine."""
    try:
        found: str | None = services.get_ray_address_from_environment(address, None)
    except ConnectionError as error:
        raise _no_answer(address, error) from error
    return found or address


def _answering_host(address: str) -> str:
    """Return the host of `address`, host:port or ray://host:port, after seeing that something listens there.

    Ray itself would try for a quarter of an hour.
    """
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if not (host and separator and port.isdigit()):
        raise InputError(
            f"RAY_ADDRESS={address!r} is no address. Allowed: host:port, ray://host:port, auto, or local (as when it is unset)."
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
def _local(storage: StorageSpec) -> Iterator[Session]:
    """Start Ray on this machine; end it and every process of it."""
    Console().say("starting Ray on this machine")
    secure_token()
    tempfile.gettempdir()  # Python remembers the first answer: for this process it stays the user's, beyond the session.
    folder = Path(tempfile.mkdtemp(prefix="cm-", dir="/tmp"))  # Unix sockets in it must stay under 108 characters.
    scratch = folder / "tmp"  # Engines leave sockets and files where temporary files go: they go with the session.
    scratch.mkdir()
    with guarded(folder):
        try:
            variables = {"RAY_TMPDIR": str(folder), "TMPDIR": str(scratch), "RAY_USAGE_STATS_ENABLED": "0", _NICENESS: _niceness()}
            with _loopback_only(), _variables(variables):
                with _group_of_their_own():
                    _start(folder)
                yield Session(ray.get_runtime_context().gcs_address, True, folder)
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


def call_worker(kind: str, device: Device, function: Callable[..., _Result], *arguments: object) -> _Result:
    """Call an importable `function` in a worker of the environment `kind` and return what it returns.

    A `CrossmeshError` arrives as itself, without Ray's traceback; any other failure as Ray's `RayTaskError`. A library that the worker
    lacks is an `InputError` that names the lock which has it.
    """
    worker = environment(kind, device)
    watch = _bring_up(worker, device)
    with task_options(worker, device) as options:
        task = ray.remote(function).options(**options).remote(*arguments)
        try:
            _wait(lambda wait_s: bool(ray.wait([task], timeout=wait_s)[0]), device, watch)
            result: _Result = ray.get(task)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, CrossmeshError):
                raise error.cause from None
            if missing := lacking(str(error.cause), worker, device):
                raise InputError(missing) from None
            raise
        except (KeyboardInterrupt, InputError):
            cancel_task(task)
            raise
    return result


def _bring_up(worker: WorkerEnvironment, device: Device) -> Growth | None:
    """Wait until the user's cluster has a node for `worker`, and return what watches for one that never comes; None on a local Ray.

    A helper takes no chip, so that asking for it alone would start a node with any number of these GPUs; training needs all of them on one
    node. A placement group asks for that node, and goes when it is there. TPU slices are asked for by `task_options`.
    """
    if isinstance(device, Cpu) or worker.kind == "head" or users_cluster() is None:
        return None
    if isinstance(device, Tpu):
        return Growth(device)
    chips = device.count if worker.kind.startswith("train/") else 1
    watch, seen = Growth(device, chips), read_view()
    if seen is not None and not any(node.is_of(device, chips) for node in seen.nodes):
        with held_hosts(device, 1) as hosts:
            _wait(hosts.wait, device, watch)
    return watch


def bring_up(device: Gpu | Tpu, slices: int, timeout_s: float) -> bool:
    """Ask the user's cluster for all hosts of `slices` slices, and wait until they are up; False when `timeout_s` is over first.

    Raises `InputError` when the cluster will never have them.
    """
    deadline = time.monotonic() + timeout_s
    with held_hosts(device, slices) as hosts:
        watch = Growth(device, device.count if isinstance(device, Gpu) else 1)
        _wait(lambda wait_s: hosts.wait(wait_s) or time.monotonic() >= deadline, device, watch)
        return bool(hosts.wait(0))


def _wait(arrived: Callable[[float], bool], device: Device, watch: Growth | None) -> None:
    """Wait until `arrived`, called with seconds to wait, says so; meanwhile `watch` looks, and the person hears why it takes long."""
    since_s, told_at = time.time(), time.monotonic()
    while not arrived(_WATCH_S):
        if watch:
            watch.check()
        if time.monotonic() - told_at >= QUIET_S:
            told_at = time.monotonic()
            if waiting := waited_for(device, since_s):
                Console().say(waiting)


def waited_for(device: Device, since_s: float) -> str:
    """What work on `device` has waited for since `since_s` (Unix time) while the cluster has no node with it; empty when there is one."""
    if isinstance(device, Cpu) or ray.cluster_resources().get(device.node_resource, 0) > 0:
        return ""
    return f"waiting for a node with {device.chip}: the cluster has none yet. {why_nodes_are_missing(device, since_s)}; Ctrl-C stops"


def why_nodes_are_missing(device: Device, since_s: float) -> str:
    """What the autoscaler could not start since `since_s` (Unix time) and why, or that it starts no more, or that nothing is known."""
    if failed := said_of(failed_launches(ray.get_runtime_context().gcs_address, since_s)):
        return failed
    seen = None if isinstance(device, Cpu) else read_view()
    if seen and not isinstance(device, Cpu) and seen.refuses(device, device.count if isinstance(device, Gpu) else 1):
        return "The autoscaler starts no more of them now: all that its file allows are up (max_workers), or it has no such node type"
    return "Nodes may be starting"


def lacking(said: str, worker: WorkerEnvironment, device: Device) -> str:
    """What to do about a worker that `said` that it has no module of some name; empty when it failed otherwise."""
    found = re.search(r"No module named '([\w.]+)'", said)
    if found is None:
        return ""
    where = worker.python or "the one that runs Ray there"
    local = " hardware=cpu is for one machine (`make install`)." if isinstance(device, Cpu) else ""
    return (
        f"A worker of {worker.kind} on {device.chip} has no module {found[1]!r}: its environment ({where}) is not made from "
        f"requirements/{worker.lock}. On a cluster's node requirements/install-node.sh makes it.{local}"
    )


def cancel_task(task: Any, wait_s: float = 0.0) -> None:
    """Cancel a Ray task and wait up to `wait_s` for its end; one that has ended is left alone.

    Ray 2.60 may abort this process when a task is cancelled in the moment in which its result arrives.
    """
    if ray.wait([task], timeout=0)[0]:
        return
    ray.cancel(task)
    ray.wait([task], timeout=wait_s)


@dataclass(frozen=True)
class Hosts:
    """Nodes as Ray is asked for them: a placement group with one bundle on each; a TPU host's takes no chip, a GPU node's takes all."""

    bundles: tuple[Mapping[str, float], ...]
    labels: Mapping[str, str]
    """Labels that every host must have."""
    strategy: str = "STRICT_SPREAD"

    def reserve(self) -> PlacementGroup:
        """Ask Ray for them without waiting."""
        selectors = [dict(self.labels) for _ in self.bundles]
        return placement_group([dict(one) for one in self.bundles], strategy=self.strategy, bundle_label_selector=selectors)


def hosts_of(device: Gpu | Tpu, slices: int) -> Hosts:
    """All hosts of `slices` slices like `device`, and hosts of no other kind of slice; for GPUs so many nodes with all of them.

    Chip and pod type are asked for: `accelerator_type:TPU-V5P` alone would be met by a host of any v5p slice. All hosts are asked for at
    once, because KubeRay adds whole slices only: Ray's own reservation of a slice asks for its first host, and waits for ever where no
    slice is there yet.
    """
    if isinstance(device, Gpu):
        return Hosts(({"GPU": device.count, device.node_resource: _NODE_SHARE},) * slices, {})
    return Hosts(({device.node_resource: _NODE_SHARE},) * (device.hosts * slices), device.host_labels)


@contextmanager
def held_hosts(device: Gpu | Tpu, slices: int) -> Iterator[PlacementGroup]:
    """Ask for the hosts of `slices` slices, without waiting for them, and let them go with the block."""
    hosts = hosts_of(device, slices).reserve()
    try:
        yield hosts
    finally:
        with suppress(ray.exceptions.RayError):  # Of a cluster that is gone.
            remove_placement_group(hosts)


@contextmanager
def task_options(worker: WorkerEnvironment, device: Device, slices: int = 1) -> Iterator[dict[str, Any]]:
    """Yield options of a Ray task that needs the environment `worker` and no chip: on a node that has it.

    Nodes have the environment of their own hardware only, so one with the chip is asked for (an autoscaler then starts it). A TPU slice is
    held as a whole while the block runs, so that the task runs on a host of it and starts no other slice.

    Args:
        worker: the environment.
        device: what the work is for.
        slices: how many slices of it the work will use.
    """
    options: dict[str, Any] = {"num_cpus": 0, "resources": {}, "max_retries": 0, "runtime_env": worker.runtime_env}
    match device:
        case Gpu() if worker.kind != "head":
            yield options | {"resources": {device.node_resource: _NODE_SHARE}}
        case Tpu() if worker.kind != "head":
            with held_hosts(device, slices) as hosts:
                yield options | {"scheduling_strategy": PlacementGroupSchedulingStrategy(hosts, placement_group_bundle_index=0)}
        case _:
            yield options


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
                _node_ip_address="127.0.0.1",
            )
            return
        except Exception as error:
            if tries_left == 0 or "timed out during startup" not in str(error):
                raise
            ray.shutdown()
            end_processes(folder, grace_s=0.0)


@contextmanager
def _loopback_only() -> Iterator[None]:
    """Keep every port of a local Ray on 127.0.0.1.

    Ray 2.60 replaces a node address of 127.0.0.1 by one that other hosts reach, unless clusters are off, and reads that switch when it is
    imported; so it is set in this process as well as in the environment of those that follow. Its metrics exporter listens on all
    interfaces whatever the address, so it is turned off.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        with _variables({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_enable_metrics_collection": "0"}):
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


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
