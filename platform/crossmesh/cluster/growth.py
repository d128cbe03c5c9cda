"""Whether a cluster can ever have the nodes that a job waits for: what Ray says of its nodes and of its autoscaler's.

A node kind that no file declares is otherwise waited for without end. Nothing here asks for a node.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply, NodeStatus

from crossmesh.compat.ray_core import cluster_status
from crossmesh.errors import InputError
from crossmesh.hardware.devices import Gpu, Tpu
from crossmesh.hardware.hosts import is_host

_READ_EVERY_S = 5.0
"""As often as Ray's autoscaler reports."""
_PATIENCE_S = 30.0
"""How long an answer must stand: a node that has just been asked for may not be in it yet."""
_UP = (NodeStatus.RUNNING, NodeStatus.IDLE)


@dataclass(frozen=True)
class NodeView:
    """A node that is up."""

    resources: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)

    def is_of(self, device: Gpu | Tpu, chips: int = 1) -> bool:
        """Whether it is a host of such a slice, or a node with so many of such GPUs."""
        return is_host(self.resources, self.labels, device, chips)


@dataclass(frozen=True)
class ClusterView:
    """What a cluster says of itself."""

    nodes: tuple[NodeView, ...] = ()
    starting: bool = False
    """Whether its autoscaler has asked for nodes that are not up yet."""
    fixed: bool = False
    """Whether it has no autoscaler."""
    infeasible: tuple[Mapping[str, float], ...] = ()
    """Requests that its autoscaler has no node type for, or no more of."""

    def never_has(self, device: Gpu | Tpu, chips: int) -> bool:
        """Whether nodes of `device` are neither up nor to come. A kind of which all are busy is up.

        While other accelerators are up, an autoscaler may only have reached its `max_workers`: ours come when those go.
        """
        if self.starting or any(node.is_of(device, chips) for node in self.nodes):
            return False
        return self.fixed or (self.refuses(device, chips) and not any(_kind(node) for node in self.nodes))

    def refuses(self, device: Gpu | Tpu, chips: int) -> bool:
        """Whether the autoscaler says now that it has no node type for such nodes, or may start no more of them."""
        return any(device.node_resource in request and request.get("GPU", 0) in (0, chips) for request in self.infeasible)


def view_of(reply: GetClusterStatusReply, report: str | bytes | None) -> ClusterView:
    """The view that Ray's second autoscaler gives in `reply`, or a cluster without it in `report`, the JSON of Ray's first one."""
    nodes = tuple(
        NodeView(dict(node.total_resources), dict(node.labels)) for node in reply.cluster_resource_state.node_states if node.status in _UP
    )
    scaled = reply.autoscaling_state
    if scaled.autoscaler_state_version:
        refused = [request for gang in scaled.infeasible_gang_resource_requests for request in gang.requests]
        refused += scaled.infeasible_resource_requests
        starting = bool(scaled.pending_instance_requests or scaled.pending_instances)
        return ClusterView(nodes, starting, infeasible=tuple(dict(request.resources_bundle) for request in refused))
    return ClusterView(nodes, fixed=_is_fixed(report))


def _is_fixed(report: str | bytes | None) -> bool:
    """Without an autoscaler Ray names a node type after each node, `node_<id>`. No report: not known yet."""
    if not report:
        return False
    said: dict[str, Any] = json.loads(report).get("autoscaler_report") or {}
    types = said.get("node_type_mapping") or {}
    return bool(types) and all(kind == f"node_{node}" for node, kind in types.items())


class Growth:
    """Watches a cluster for a job that waits for nodes of `device`, with `chips` GPUs each."""

    def __init__(self, device: Gpu | Tpu, chips: int = 1) -> None:
        """Begin without having looked."""
        self._device, self._chips = device, chips
        self._next = self._since = 0.0

    def check(self) -> None:
        """Raise `InputError` when the cluster has said for a while that it will never have them; asks it every few seconds."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _READ_EVERY_S
        seen = read_view()
        if seen is None or not seen.never_has(self._device, self._chips):
            self._since = 0.0
        elif not self._since:
            self._since = now
        elif now - self._since >= _PATIENCE_S:
            raise InputError(explain_unavailable(self._device, seen))


def read_view() -> ClusterView | None:
    """What the connected cluster says; None when it cannot be asked, as through `ray://`."""
    try:
        reply, report = cluster_status(ray.get_runtime_context().gcs_address, _READ_EVERY_S)
        return view_of(GetClusterStatusReply.FromString(reply), report)
    except (RuntimeError, ValueError, OSError, AttributeError, ray.exceptions.RayError):
        return None


def explain_unavailable(device: Gpu | Tpu, seen: ClusterView) -> str:
    """What to tell a user whose cluster will never have `device`."""
    if isinstance(device, Gpu):
        asked = f"a node with {device.count} {device.accelerator_type} ({device.node_resource})"
    else:
        asked = f"a {device.accelerator_type} slice of {device.hosts} host(s) ({device.node_resource}, label ray.io/tpu-pod-type)"
    kinds = sorted({_kind(node) for node in seen.nodes} - {""})
    declared = "it has no autoscaler" if seen.fixed else "its autoscaler has no node type for that"
    return (
        f"hardware: the cluster cannot provide {asked}: {declared}, and no such node is up (with accelerators: "
        f"{', '.join(kinds) or 'none'}). Declare it in the cluster's file (cluster.yaml, conf/cluster/raycluster.yml) and apply that, "
        "or choose hardware= that is declared."
    )


def _kind(node: NodeView) -> str:
    """What accelerators a node has, in Ray's words; empty: none."""
    names = [name.partition(":")[2] for name in node.resources if name.startswith("accelerator_type:")]
    if not names:
        return ""
    pod = node.labels.get("ray.io/tpu-pod-type")
    return pod or f"{node.resources.get('GPU', 0):g} x {names[0]}"
