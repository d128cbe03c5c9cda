"""What is looked at on a node of a cluster, by a process of the environment that jobs of its hardware use. Asks Ray nothing."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.doctor.accelerators import SeenAccelerators, driver_finding, node_finding, seen_here
from crossmesh.doctor.chip_work import version_of
from crossmesh.doctor.examination import examine
from crossmesh.doctor.finding import FAULT, NOTE, Finding, ok
from crossmesh.doctor.judging import check_judging
from crossmesh.doctor.listeners import listeners_of_node
from crossmesh.doctor.machine import check_disks, check_memory, clock_finding, synchronized
from crossmesh.doctor.packages import check_packages, locked_finding
from crossmesh.doctor.private_files import check_private_files
from crossmesh.doctor.services import check_hub, check_tracking
from crossmesh.doctor.sharing import Shared, Sight, seen
from crossmesh.doctor.storage import check_storage
from crossmesh.hardware.devices import Device
from crossmesh.track.masking import mask_secrets

_LIBRARIES = ("ray", "torch", "jax", "vllm", "libtpu", "nvidia-nccl-cu13")


@dataclass(frozen=True)
class Visit:
    """What a node is looked at for."""

    spec: ExperimentSpec
    """With an absolute `storage.root`: variables of the node's own do not count."""
    device: Device
    chips: int
    """Accelerators that Ray was told of."""
    head: bool
    lock: str
    """The lock of the environment that this runs in; empty: the one that fits best."""
    emulated: bool


class NodeProbe:
    """Runs as a Ray actor on the node."""

    def now(self) -> float:
        """The time there, seconds since 1970."""
        return time.time()

    def sight(self, shared: Shared, name: str) -> Sight:
        """What it sees of the driver's `storage.root`."""
        return seen(shared, name)

    def look(self, visit: Visit) -> tuple[Finding, ...]:
        """All findings; without a secret of the node's."""
        return tuple(replace(one, found=mask_secrets(one.found), mend=mask_secrets(one.mend)) for one in looked_at(visit))


def looked_at(visit: Visit) -> tuple[Finding, ...]:
    """What the checks of a machine find on a node."""

    def check_environment(spec: ExperimentSpec) -> Iterator[Finding]:
        yield from check_packages(spec, visit.lock)
        yield libraries_finding()

    def check_node_storage(spec: ExperimentSpec) -> Iterator[Finding]:
        if spec.storage.path.is_dir():  # Where it is not, `sharing` says so.
            yield from check_storage(spec)

    def check_node_listeners(_spec: ExperimentSpec) -> Iterator[Finding]:
        yield listeners_of_node(head=visit.head)

    def check_driver_services(spec: ExperimentSpec) -> Iterator[Finding]:
        for check in (check_judging, check_tracking, check_hub):
            yield from of_drivers(check(spec), head=visit.head)

    def check_node_accelerators(_spec: ExperimentSpec) -> Iterator[Finding]:
        found = seen_here()
        if visit.chips or found != SeenAccelerators():
            yield node_finding(found, visit.device, visit.chips, emulated=visit.emulated)
        if found.gpus:
            yield driver_finding(found)

    def check_node_clock(_spec: ExperimentSpec) -> Iterator[Finding]:
        yield clock_finding(synchronized(), several=True)

    checks = (
        check_environment,
        check_disks,
        check_memory,
        check_node_storage,
        check_node_listeners,
        check_private_files,
        check_driver_services,
        check_node_accelerators,
        check_node_clock,
    )
    return examine(visit.spec, checks)


def of_drivers(findings: Iterable[Finding], *, head: bool) -> Iterator[Finding]:
    """Findings of what drivers need, which run on the head where jobs are submitted: faults there, and notes on other nodes."""
    for one in findings:
        if head or one.status != FAULT:
            yield one
        else:
            yield Finding(one.name, NOTE, f"{one.found}. Jobs ask for it where their driver runs, not here", one.mend)


def packages_of(lock: str) -> Finding:
    """The packages of this process's interpreter against `lock`."""
    return locked_finding(lock)


def libraries_finding() -> Finding:
    """Versions of what jobs compute with, as far as it is installed."""
    found = [f"{name} {version}" for name in _LIBRARIES if (version := version_of(name))]
    return ok("libraries", ", ".join(found) or "none")
