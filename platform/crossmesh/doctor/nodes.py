"""Which nodes of a cluster are looked at: one of each kind, and every host of one TPU slice of each kind. Decides only; asks nothing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crossmesh.hardware.catalogue import Slice
from crossmesh.hardware.devices import Cpu, Device, Gpu, Tpu
from crossmesh.hardware.hosts import SLICE_LABEL, is_host, whole_slices

_POD, _WORKER = "ray.io/tpu-pod-type", "ray.io/tpu-worker-id"
_OF_ONE_NODE = {"ray.io/node-id", SLICE_LABEL, _WORKER}
"""Labels in which nodes of one kind differ."""
_SIZES = {"memory", "object_store_memory"}
_HEAD = "node:__internal_head__"


@dataclass(frozen=True)
class RayNode:
    """A node as Ray lists it."""

    id: str
    address: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]

    @property
    def head(self) -> bool:
        """Whether submitted jobs run here."""
        return _HEAD in self.resources

    @property
    def slice(self) -> str:
        """The TPU slice that it is a host of; empty: of none."""
        return self.labels.get(SLICE_LABEL, "")

    @property
    def kind(self) -> tuple[tuple[str, str], ...]:
        """Equal for nodes that jobs may take one for the other: resources and labels, without what is of one node or one slice."""
        own = _SIZES | {self.slice}
        resources = {
            name: f"{value:g}"
            for name, value in self.resources.items()
            if name not in own and (name == _HEAD or not name.startswith("node:")) and not (self.slice and name.endswith("-head"))
        }
        labels = {name: value for name, value in self.labels.items() if name not in _OF_ONE_NODE}
        return tuple(sorted({**resources, **labels}.items()))


@dataclass(frozen=True)
class Probed:
    """A node to look at."""

    node: RayNode
    hardware: Slice | None
    """What it is of the catalogue; None: a CPU, or a chip that the catalogue does not know."""
    device: Device
    alike: int = 0
    """Nodes that this one stands for."""

    @property
    def title(self) -> str:
        """As a person reads it."""
        match self.device:
            case Gpu():
                what = f"{self.node.resources.get('GPU', 0):g} x {self.device.accelerator_type}"
            case Tpu():
                where = f", host {self.node.labels.get(_WORKER, '?')} of slice {self.node.slice}" if self.node.slice else ""
                what = f"TPU {self.device.accelerator_type}{where}"
            case _:
                what = f"{self.node.resources.get('CPU', 0):g} CPUs"
        many = f"; {self.alike} more of its kind" if self.alike else ""
        return f"{self.node.address}, node {self.node.id[:8]} ({'head, ' if self.node.head else ''}{what}{many})"


def listed(nodes: Iterable[Mapping[str, Any]]) -> list[RayNode]:
    """The nodes of `ray.nodes()` that are alive."""
    return [
        RayNode(str(one["NodeID"]), str(one["NodeManagerAddress"]), dict(one["Resources"]), dict(one.get("Labels") or {}))
        for one in nodes
        if one["Alive"]
    ]


def chosen(nodes: Sequence[RayNode], known: Iterable[Slice], here: str) -> list[Probed]:
    """One node of each kind, the head first, and all hosts of one slice of each kind.

    The node with the id `here` is this machine: where it has no accelerator it is looked at already.
    """
    catalogue = list(known)
    kinds: dict[tuple[tuple[str, str], ...], list[RayNode]] = {}
    for node in sorted(nodes, key=lambda one: (not one.head, one.address, one.id)):
        kinds.setdefault(node.kind, []).append(node)
    found = []
    for kind in kinds.values():
        device, hardware = recognized(kind[0], catalogue)
        others = [node for node in kind if node.id != here or not isinstance(device, Cpu)]
        first = others[:1]
        if others and others[0].slice:
            of_slice = [node for node in others if node.slice == min(one.slice for one in others)]
            first = sorted(of_slice, key=lambda one: (len(one.labels.get(_WORKER, "")), one.labels.get(_WORKER, "")))
        found += [Probed(node, hardware, device, len(others) - len(first) if node is first[0] else 0) for node in first]
    return found


def recognized(node: RayNode, catalogue: Iterable[Slice]) -> tuple[Device, Slice | None]:
    """What computes on a node, and the catalogue's entry of it."""
    fitting = [one for one in catalogue if not isinstance(one.device, Cpu) and is_host(node.resources, node.labels, one.device)]
    gpus, chips = int(node.resources.get("GPU", 0)), int(node.resources.get("TPU", 0))
    if fitting:
        best = min(fitting, key=lambda one: (one.device.chip_count() != gpus, one.name) if gpus else (False, one.name))
        return best.device, best
    kind = node.labels.get("ray.io/accelerator-type", "an unknown chip")
    if gpus:
        return Gpu(kind, gpus, kind), None
    if chips:
        return Tpu(kind, node.labels.get("ray.io/tpu-topology", f"{chips}x1"), node.labels.get(_POD, kind), chips), None
    return Cpu(), None


def is_up(nodes: Iterable[RayNode], device: Device, slices: int) -> bool:
    """Whether the cluster has nodes enough for `slices` times `device` now, taken or free."""
    return isinstance(device, Cpu) or whole_slices(device, nodes) >= slices
