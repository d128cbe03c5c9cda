"""On how many slices a run with `mesh.min_dcn` goes on: which slices are whole, how many of them it can use, and when one is back.

Ray Train's own elastic workers (`num_workers=(least, most)`) restart from Ray's checkpoints and count retries of their own; ours are the
driver's (`launch.py`). What is decided here is pure; what is asked of Ray is at the end.
"""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from crossmesh.cluster.nodes import QUIET_S, hosts_of, why_nodes_are_missing
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.hardware.devices import Cpu, Device, Gpu, Tpu
from crossmesh.hardware.hosts import SLICE_LABEL, hosts_by_slice, whole_slices
from crossmesh.train.events import OnEvent, StageEvent
from crossmesh.train.nodes import Node, is_created, nodes

_LOOK_S = 1.0
_SETTLE_S = 60.0
"""How long the cluster may take to notice a dead node, and to free what an attempt held: longer than Ray's health check."""


def usable(spec: ExperimentSpec, there: int) -> int:
    """The most slices up to `there` that the run may use and that divide its batch; 0: fewer than `mesh.least_dcn`."""
    possible = range(min(there, spec.mesh.dcn), spec.mesh.least_dcn - 1, -1)
    own = spec.micro_batch * spec.mesh_shape.dp_size // spec.mesh.dcn
    return next((slices for slices in possible if spec.batch.size % (own * slices) == 0), 0)


def broken(device: Device, nodes: Collection[Node]) -> dict[str, list[Node]]:
    """Hosts that are left of slices which have lost others, by slice: no run can use them, and Ray would reserve them."""
    if not isinstance(device, Tpu):
        return {}
    return {name: hosts for name, hosts in hosts_by_slice(device, nodes).items() if len(hosts) < device.hosts}


def find_slices(spec: ExperimentSpec, on_event: OnEvent, check: Callable[[], None]) -> int:
    """The number of slices that an attempt starts on; waits, and asks the cluster to grow, while there are too few.

    Without `mesh.min_dcn` it is `mesh.dcn`, and Ray waits for what is missing.
    """
    device = spec.hardware.slice.device
    if spec.mesh.least_dcn == spec.mesh.dcn or isinstance(device, Cpu):
        return spec.mesh.dcn
    if found := usable(spec, _settled(device, check)):
        return found
    since_s, told_at = time.time(), float("-inf")
    with requests_for(device) as requests:
        requests.ask(spec.mesh.dcn)
        while not (found := usable(spec, requests.there())):
            if time.monotonic() - told_at >= QUIET_S:
                told_at = time.monotonic()
                wanted = f"waiting for {spec.mesh.least_dcn} of {spec.mesh.dcn} slices (mesh.min_dcn)"
                on_event(StageEvent(f"{wanted}. {why_nodes_are_missing(device, since_s)}; Ctrl-C stops"))
            check()
            time.sleep(_LOOK_S)
    return found


def _settled(device: Device, check: Callable[[], None]) -> int:
    """Whole free slices, once Ray agrees about which nodes are there and what an earlier attempt held is free; or after a while."""
    deadline = time.monotonic() + _SETTLE_S
    while True:
        seen = nodes()
        found = whole_slices(device, [node for node in seen if node.answers], lambda node: node.free)
        agreed = all(node.answers for node in seen) and found == whole_slices(device, seen)
        if agreed or time.monotonic() >= deadline:
            return found
        check()
        time.sleep(_LOOK_S)


@dataclass
class Requests:
    """Slices that are asked for beside those that are used; each is held as soon as it is there."""

    device: Gpu | Tpu
    groups: list[PlacementGroup] = field(default_factory=list)
    kept_out: dict[str, PlacementGroup] = field(default_factory=dict)
    """Hosts of broken slices, held so that they are not taken for whole ones."""

    def ask(self, count: int) -> None:
        """Ask for `count` slices, without waiting: an autoscaler starts them."""
        self.groups += [_request(self.device) for _ in range(count)]

    def free_whole(self) -> None:
        """Let go of hosts whose slice has all of them by now: it was still starting, maybe for another job."""
        if self.kept_out:
            for name in self.kept_out.keys() - broken(self.device, nodes()).keys():
                remove_placement_group(self.kept_out.pop(name))

    def there(self) -> int:
        """How many of the slices have come."""
        self.free_whole()
        return sum(is_created(group) for group in self.groups)


@contextmanager
def requests_for(device: Gpu | Tpu) -> Iterator[Requests]:
    """While the block runs, what is asked for is held, and hosts of broken slices are kept out; with it all are let go."""
    requests = Requests(device)
    try:
        for name, hosts in broken(device, nodes()).items():
            bundles = [{kind: amount for kind, amount in host.resources.items() if kind.startswith("TPU")} for host in hosts]
            selectors = [{SLICE_LABEL: name} for _ in hosts]
            requests.kept_out[name] = placement_group(bundles, strategy="STRICT_SPREAD", bundle_label_selector=selectors)
        yield requests
    finally:
        with suppress(ray.exceptions.RayError):  # Of a cluster that is gone.
            for group in (*requests.groups, *requests.kept_out.values()):
                remove_placement_group(group)


def _request(device: Gpu | Tpu) -> PlacementGroup:
    """One slice with all its chips."""
    hosts = hosts_of(device, 1)
    if isinstance(device, Tpu):  # As it is, their chips are left to the workers; here they are held.
        first, *others = ({**host, "TPU": device.chips_per_host} for host in hosts.bundles)
        hosts = replace(hosts, bundles=({**first, device.head_resource: 1}, *others))
    return hosts.reserve()


class MissingSlices:
    """Looks, while an attempt runs on fewer slices than the run wants, whether those that it lacks have come."""

    def __init__(self, spec: ExperimentSpec, slices: int, requests: Requests) -> None:
        """`spec` is the trial's; `slices` is what the attempt runs on."""
        self._spec = spec
        self._slices = slices
        self._requests = requests
        self._next_look = float("inf")

    def begin(self) -> None:
        """The attempt has its workers: what is asked for from now on is no longer taken from them."""
        if self._next_look == float("inf"):
            self._requests.ask(self._spec.mesh.dcn - self._slices)
            self._next_look = time.monotonic() + self._spec.retry.resize_interval_s

    def look(self) -> int:
        """The number of slices that the run could go on with, where they are more; otherwise 0."""
        self._requests.free_whole()
        now = time.monotonic()
        if now < self._next_look:
            return 0
        self._next_look = now + self._spec.retry.resize_interval_s
        found = usable(self._spec, self._slices + self._requests.there())
        return found if found > self._slices else 0
