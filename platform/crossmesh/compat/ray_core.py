"""Ray Core: the address of a Ray on this machine, its accelerators, its tables of nodes and placement groups, its store, its logs."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crossmesh.compat.parts import member, part, set_member

LOOPBACK_ARGUMENTS = {"_node_ip_address": "127.0.0.1"}
"""With which `ray.init` starts a node that listens on this machine only; it refuses arguments that it does not know."""
_LAUNCH_FAILED = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d+\s.*Failed to launch \d+ nodes of type (\S+): (.+)$")
_STATUS_KEY = b"__autoscaling_status"
"""Under which Ray's first autoscaler, and the monitor of a cluster without one, store their report."""


def newest_local_address() -> str | None:
    """Return the GCS address of the newest Ray that runs on this machine. Raises `ConnectionError` when none does."""
    address: str | None = part("ray", "ray._private.services", "get_ray_address_from_environment")("auto", None)
    return address


def visible_chips(resource: str) -> int:
    """Return how many accelerators of `resource` (`GPU`, `TPU`) a Ray started by this process will find on this machine."""
    manager = part("ray", "ray._private.accelerators", "get_accelerator_manager_for_resource")(resource)
    there = int(member("ray", manager, "get_current_node_num_accelerators")())
    visible = member("ray", manager, "get_current_process_visible_accelerator_ids")()
    return there if visible is None else min(there, len(visible))


@contextmanager
def loopback_addresses_kept() -> Iterator[None]:
    """Have Ray take a node address of 127.0.0.1 as it is.

    Ray 2.60 replaces it by one that other hosts reach, unless clusters are off, and reads that switch when it is imported.
    """
    constants = part("ray", "ray._private.ray_constants")
    before = member("ray", constants, "ENABLE_RAY_CLUSTER")
    set_member("ray", constants, "ENABLE_RAY_CLUSTER", False)
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def is_slow_start(error: BaseException) -> bool:
    """Whether `ray.init` gave up waiting for the node that it had started."""
    return "timed out during startup" in str(error)


def session_folder() -> Path | None:
    """Return the folder of the Ray session on this node, where its logs are; None in a process that Ray did not tell."""
    node = member("ray", part("ray", "ray._private.worker", "global_worker"), "node")
    return None if node is None else Path(member("ray", node, "get_session_dir_path")())


@dataclass(frozen=True)
class LoggedFailure:
    """A node that Ray's autoscaler could not start, as its log has it."""

    node_type: str
    at_s: float
    """Unix time."""
    error: str
    """In the words of the cloud."""


def logged_failures(log: str) -> list[LoggedFailure]:
    """Launches that failed, in a log of Ray's autoscaler. Its times are the machine's own."""
    found = []
    for line in log.split("\n"):
        if match := _LAUNCH_FAILED.match(line):
            at = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").astimezone(UTC)
            found.append(LoggedFailure(match[2], at.timestamp(), match[3]))
    return found


def cluster_status(gcs_address: str, timeout_s: float) -> tuple[bytes, bytes | None]:
    """Return what the GCS says of its nodes: a serialised `GetClusterStatusReply`, and the report of Ray's first autoscaler, in JSON."""
    client = part("ray", "ray._raylet", "GcsClient")(address=gcs_address)
    reply: bytes = member("ray", client, "get_cluster_status")(timeout_s=timeout_s)
    return reply, member("ray", client, "internal_kv_get")(_STATUS_KEY, None, timeout=timeout_s)


def head_resource() -> str:
    """Return the resource that the head node alone has, 1 of it."""
    name: str = part("ray", "ray._common.constants", "HEAD_NODE_RESOURCE_NAME")
    return name


def free_resources() -> dict[str, dict[str, float]]:
    """Return what is not taken of each node's resources, by the node's id."""
    free: dict[str, dict[str, float]] = part("ray", "ray._private.state", "available_resources_per_node")()
    return free


def draining_nodes() -> frozenset[str]:
    """Return the ids of the nodes that have notice that they are taken away."""
    return frozenset(part("ray", "ray._private.state", "state", "get_draining_nodes")())


def placement_groups() -> list[bytes]:
    """Return all placement groups of the cluster, each a serialised `PlacementGroupTableData`."""
    groups: list[bytes] = member("ray", _accessor(), "get_placement_group_table")()
    return groups


def placement_group(group: Any) -> bytes | None:
    """Return the serialised `PlacementGroupTableData` of a placement group; None when the GCS does not know it."""
    found: bytes | None = member("ray", _accessor(), "get_placement_group_info")(group.id)
    return found


def _accessor() -> Any:
    return part("ray", "ray._private.state", "state", "_connect_and_get_accessor")()


def kv_get(space: bytes, key: bytes) -> bytes | None:
    """Return the value of `key` in our `space` of the GCS's key-value store. Blocks for a round trip, as all of these do."""
    value: bytes | None = _kv("get")(key, namespace=space)
    return value


def kv_put(space: bytes, key: bytes, value: bytes, *, overwrite: bool = True) -> bool:
    """Store `value` under `key`; return whether it was stored, which one that exists prevents unless it may be overwritten."""
    existed: bool = _kv("put")(key, value, overwrite=overwrite, namespace=space)
    return overwrite or not existed


def kv_delete(space: bytes, key: bytes) -> None:
    """Remove `key`; one that does not exist is not an error."""
    _kv("del")(key, namespace=space)


def kv_list(space: bytes, prefix: bytes) -> list[bytes]:
    """Return the keys that begin with `prefix`."""
    keys: list[bytes] = _kv("list")(prefix, namespace=space)
    return keys


def _kv(verb: str) -> Any:
    return part("ray", "ray.experimental.internal_kv", f"_internal_kv_{verb}")
