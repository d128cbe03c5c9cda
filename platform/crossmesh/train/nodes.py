"""What an attempt leaves on the cluster: whether its nodes are still there, and reservations that Ray forgets.

It reads Ray's own tables and decides nothing about the run.
"""

import socket
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray import PlacementGroupID
from ray.core.generated.gcs_pb2 import PlacementGroupTableData
from ray.util.placement_group import PlacementGroup, remove_placement_group

from crossmesh.cluster.nodes import NODE_SHARE
from crossmesh.compat.ray_core import draining_nodes, free_resources, head_resource, placement_group, placement_groups
from crossmesh.compat.ray_train import start_coordinator
from crossmesh.environments import environment
from crossmesh.errors import CrossmeshError
from crossmesh.hardware.devices import Cpu

_LOOK_S = 0.2
_PATIENCE_S = 20.0
"""How long the actors of an attempt may take to end after it."""
_CONNECT_S = 5.0
_START_S = 120.0
"""How long a worker on the head may take to start."""


def keep_coordinator_on_head() -> None:
    """Have the actor with which Ray Train counts the cluster's resources started on the head, before Ray Train starts it where it runs.

    It outlives the run, and to Ray's autoscaler a node with an actor is never idle: a TPU or GPU node would be paid without end. One that
    is there already stays where it is.
    """
    on_head = {"num_cpus": 0, "max_retries": 0, "resources": {head_resource(): NODE_SHARE}}
    task = ray.remote(start_coordinator).options(**on_head, runtime_env=environment("head", Cpu()).runtime_env).remote()
    try:
        ray.get(task, timeout=_START_S)
    except ray.exceptions.GetTimeoutError:  # Ray Train then starts it where it runs itself.
        ray.cancel(task)
    except ray.exceptions.RayError as error:
        if isinstance(getattr(error, "cause", None), CrossmeshError):
            raise error.cause from None


def release_reservations(*, wait: bool) -> int:
    """Remove the placement groups that this job's ended actors have left, and return how many there were.

    Ray 2.60 leaks them: a placement group of an actor lives until the actor and the whole job are dead, and Ray Train forgets the one with
    which it reserves the head of a TPU slice when it then cannot find out the slice's name. Until it is gone the slice is not free. With
    `wait`, actors that are about to end are waited for a short while.
    """
    job = ray.get_runtime_context().get_job_id()
    removed: set[bytes] = set()
    deadline = time.monotonic() + (_PATIENCE_S if wait else 0.0)
    while True:
        groups = [PlacementGroupTableData.FromString(one) for one in placement_groups()]
        ours = [one for one in groups if one.creator_job_id.hex() == job and _left_by_an_actor(one)]
        for one in ours:
            if one.creator_actor_dead and one.placement_group_id not in removed:
                remove_placement_group(PlacementGroup(PlacementGroupID(one.placement_group_id)))
                removed.add(one.placement_group_id)
        if not ours or time.monotonic() >= deadline:
            return len(removed)
        time.sleep(_LOOK_S)


def _left_by_an_actor(group: PlacementGroupTableData) -> bool:
    """Whether `group` exists, and an actor made it that ends with the job (those of Ray Serve do not)."""
    by_actor = bool(group.creator_actor_id.strip(b"\xff")) and not group.is_detached and not group.creator_job_dead
    return by_actor and group.state != PlacementGroupTableData.REMOVED


@dataclass(frozen=True)
class Node:
    """A node that Ray takes for alive and that stays."""

    id: str
    resources: Mapping[str, float]
    """All that it has."""
    free: Mapping[str, float]
    labels: Mapping[str, str]
    answers: bool
    """Whether something listens there: of a dead node Ray learns after half a minute."""


def nodes() -> list[Node]:
    """The nodes of the cluster, but those that have notice that they are taken away."""
    free, going = free_resources(), draining_nodes()
    known = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in going]
    return [Node(node["NodeID"], node["Resources"], free.get(node["NodeID"], {}), node["Labels"], _answers(node)) for node in known]


def is_created(group: PlacementGroup) -> bool:
    """Whether everything that `group` asks for is there and held for it."""
    found = placement_group(group)
    return found is not None and PlacementGroupTableData.FromString(found).state == PlacementGroupTableData.CREATED


def lost_nodes(nodes: Collection[str]) -> list[str]:
    """Return those of `nodes` (Ray's ids) that are gone: Ray says so, or nothing answers where they listened (Ray needs half a minute)."""
    known = {node["NodeID"]: node for node in ray.nodes()}
    return [node for node in nodes if node not in known or not _answers(known[node])]


def _answers(node: Mapping[str, Any]) -> bool:
    if not node["Alive"]:
        return False
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), timeout=_CONNECT_S).close()
    except OSError:
        return False
    return True
