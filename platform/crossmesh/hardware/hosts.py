"""Which nodes of a cluster are hosts of a slice, and how many slices stand there whole; nodes are what Ray says of them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from crossmesh.hardware.devices import Cpu, Device, Gpu, Tpu

SLICE_LABEL = "ray.io/tpu-slice-name"


class Host(Protocol):
    """A node as Ray lists it."""

    @property
    def id(self) -> str:
        """Ray's id."""

    @property
    def resources(self) -> Mapping[str, float]:
        """All that it has."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Ray's and the user's."""


_Host = TypeVar("_Host", bound=Host)


def is_host(resources: Mapping[str, float], labels: Mapping[str, str], device: Gpu | Tpu, gpus: int = 1) -> bool:
    """Whether a node with these resources and labels is a host of a slice like `device`, or has so many of such GPUs."""
    if resources.get(device.node_resource, 0) <= 0:
        return False
    if isinstance(device, Gpu):
        return resources.get("GPU", 0) >= gpus
    return device.host_labels.items() <= labels.items()


def hosts_by_slice(device: Tpu, nodes: Iterable[_Host]) -> dict[str, list[_Host]]:
    """Hosts of slices like `device` by the slice's name; a slice of one host may have none, and goes by the node's id."""
    found: dict[str, list[_Host]] = {}
    for node in nodes:
        if is_host(node.resources, node.labels, device):
            name = node.labels.get(SLICE_LABEL, node.id) if device.hosts > 1 else node.id
            found.setdefault(name, []).append(node)
    return found


def whole_slices(device: Device, nodes: Iterable[_Host], amounts: Callable[[_Host], Mapping[str, float]] | None = None) -> int:
    """How many slices like `device` stand on `nodes` with all their hosts and chips.

    Args:
        device: a CPU stands for one machine, slices and all.
        nodes: the nodes of the cluster.
        amounts: what counts of a node, such as what is free; all that it has without it.
    """

    def has(node: _Host, kind: str, amount: float) -> int:
        return int((amounts(node) if amounts else node.resources).get(kind, 0) // amount)

    match device:
        case Cpu():
            return 1
        case Gpu():
            return sum(has(node, "GPU", device.count) for node in nodes if is_host(node.resources, node.labels, device))
        case Tpu():
            slices = hosts_by_slice(device, nodes).values()
            return sum(sum(has(node, "TPU", device.chips_per_host) > 0 for node in hosts) == device.hosts for hosts in slices)
