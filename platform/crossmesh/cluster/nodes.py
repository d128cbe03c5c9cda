"""Nodes that a job asks its cluster for, and waits for: which they are, and what a person hears meanwhile."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from crossmesh.cluster.autoscaler import failed_launches, said_of
from crossmesh.cluster.growth import Growth, read_view
from crossmesh.console import Console
from crossmesh.hardware.devices import Cpu, Device, Gpu, Tpu

QUIET_S = 60.0
"""How often a person is told what is waited for."""

_WATCH_S = 5.0
"""How often a cluster is looked at while nodes are waited for."""

NODE_SHARE = 0.001
"""Of a node's custom resource: enough to be sent there, too little to keep anybody else out."""


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
        return Hosts(({"GPU": device.count, device.node_resource: NODE_SHARE},) * slices, {})
    return Hosts(({device.node_resource: NODE_SHARE},) * (device.hosts * slices), device.host_labels)


@contextmanager
def held_hosts(device: Gpu | Tpu, slices: int) -> Iterator[PlacementGroup]:
    """Ask for the hosts of `slices` slices, without waiting for them, and let them go with the block."""
    hosts = hosts_of(device, slices).reserve()
    try:
        yield hosts
    finally:
        with suppress(ray.exceptions.RayError):  # Of a cluster that is gone.
            remove_placement_group(hosts)


def bring_up(device: Gpu | Tpu, slices: int, timeout_s: float) -> bool:
    """Ask the user's cluster for all hosts of `slices` slices, and wait until they are up; False when `timeout_s` is over first.

    Raises `InputError` when the cluster will never have them.
    """
    deadline = time.monotonic() + timeout_s
    with held_hosts(device, slices) as hosts:
        watch = Growth(device, device.count if isinstance(device, Gpu) else 1)
        wait_for(lambda wait_s: hosts.wait(wait_s) or time.monotonic() >= deadline, device, watch)
        return bool(hosts.wait(0))


def wait_for(arrived: Callable[[float], bool], device: Device, watch: Growth | None) -> None:
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
