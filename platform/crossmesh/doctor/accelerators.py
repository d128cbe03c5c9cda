"""The accelerators of this machine against `hardware=`, and what that costs. Asks drivers and device files, never a framework."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from crossmesh.cluster.session import users_cluster
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.planning import PlanSpec
from crossmesh.doctor.finding import Finding, fault, note, ok
from crossmesh.doctor.machine import printed
from crossmesh.hardware.catalogue import Slice
from crossmesh.hardware.devices import Cpu, Device, Gpu, Tpu

_GIB = 1 << 30
_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
_MEMORY_SHARE = 0.1
"""By how much a driver's figure may differ from the catalogue's: parts are reserved."""
_DRIVER = 580
"""What any CUDA 13, for which the locks of GPUs are built, needs (docs.nvidia.com/deploy/cuda-compatibility, minor versions)."""


@dataclass(frozen=True)
class SeenGpu:
    """A GPU as its driver names it."""

    name: str
    memory_bytes: int
    driver: str


@dataclass(frozen=True)
class SeenAccelerators:
    """What this machine has."""

    gpus: tuple[SeenGpu, ...] = ()
    cuda: str = ""
    """Newest CUDA that the driver can run."""
    tpus: int = 0
    """Chips that have a device file."""

    def __str__(self) -> str:
        """As a person reads it."""
        names = ", ".join(sorted({gpu.name for gpu in self.gpus}))
        parts = [f"{len(self.gpus)} x {names}, driver {self.gpus[0].driver}, CUDA {self.cuda or 'unknown'}"] if self.gpus else []
        return "; ".join([*parts, *([f"{self.tpus} TPU chips"] if self.tpus else [])]) or "none"


def check_accelerators(spec: ExperimentSpec) -> Iterator[Finding]:
    """What is here against what was chosen, the driver, and the price."""
    seen = seen_here()
    yield accelerators_finding(seen, spec.hardware.slice, cluster=users_cluster(), emulated=spec.hardware.emulated)
    if seen.gpus:
        yield driver_finding(seen)
    yield cost_finding(spec.hardware.slice, spec.plan, datetime.now(UTC).date())


def accelerators_finding(seen: SeenAccelerators, wanted: Slice, *, cluster: str | None, emulated: bool) -> Finding:
    """Whether `wanted` is here; where a cluster is named it is asked of that."""
    device = wanted.device
    if isinstance(device, Cpu):
        here = f"here: {seen}"
        return (
            ok("accelerators", f"hardware=cpu; {here}")
            if seen == SeenAccelerators()
            else note("accelerators", f"hardware=cpu leaves idle what is {here}")
        )
    if emulated:
        return note("accelerators", f"CROSSMESH_EMULATE=1: CPU devices stand in for hardware={wanted.name}", "unset CROSSMESH_EMULATE")
    if cluster is not None:
        return note("accelerators", f"hardware={wanted.name} is asked of the cluster at RAY_ADDRESS={cluster}; here: {seen}")
    count, chips = (len(seen.gpus), device.chip_count()) if isinstance(device, Gpu) else (seen.tpus, device.chips_per_host)
    mend = "export RAY_ADDRESS=HEAD:6379    # a cluster that has it (ray up cluster.yaml); or hardware=cpu"
    if count < chips or (not isinstance(device, Gpu) and device.hosts > 1):
        return fault("accelerators", f"hardware={wanted.name} is {device.chip_count()} x {device.chip}; here: {seen}", mend)
    other = [gpu for gpu in seen.gpus if isinstance(device, Gpu) and not _is(gpu, device, wanted)]
    if other:
        size = f"{other[0].name} with {other[0].memory_bytes / _GIB:.0f} GiB"
        return fault("accelerators", f"hardware={wanted.name} is {chips} x {device.chip}; here: {size}", mend)
    return ok("accelerators", f"hardware={wanted.name}; here: {seen}")


def node_finding(seen: SeenAccelerators, device: Device, count: int, *, emulated: bool) -> Finding:
    """Whether a node of a cluster has the `count` chips that Ray was told of."""
    if emulated:
        return note("accelerators", "CROSSMESH_EMULATE=1: CPU devices stand in for them", "unset CROSSMESH_EMULATE")
    here, told = (seen.tpus if isinstance(device, Tpu) else len(seen.gpus)), f"Ray was told of {count} x {device.chip}"
    if here >= count:
        return ok("accelerators", f"{told}; here: {seen}") if count else note("accelerators", f"Ray was told of none; here: {seen}")
    look = "ls /dev/accel* /dev/vfio" if isinstance(device, Tpu) else "nvidia-smi"
    return fault("accelerators", f"{told}; here: {seen}", f"{look}    # on the node: start it again, or its Ray without that resource")


def driver_finding(seen: SeenAccelerators) -> Finding:
    """Whether the driver runs the CUDA that the locks are built for."""
    driver = seen.gpus[0].driver
    if int(driver.partition(".")[0] or 0) >= _DRIVER:
        return ok("GPU driver", driver)
    return fault(
        "GPU driver",
        f"{driver}; CUDA 13 needs {_DRIVER} or newer",
        f"sudo apt-get install -y nvidia-driver-{_DRIVER}-server && sudo reboot",
    )


def cost_finding(wanted: Slice, plan: PlanSpec, today: date) -> Finding:
    """What an hour of the slice costs, how old that figure is, and whether it is sold so at all."""
    if isinstance(wanted.device, Cpu):
        return ok("cost", "hardware=cpu: this machine, no price")
    price = wanted.price(plan.price, plan.region)
    where = f" in {plan.region}" if plan.region else ""
    mend = "hardware.catalogue=/path/to/prices.yaml    # your own, in the form of crossmesh/hardware/catalogue.yaml"
    if price is None:
        return note("cost", f"the catalogue has no {plan.price} price of hardware={wanted.name}{where}", mend)
    found = f"{price.usd_per_hour:g} USD an hour for hardware={wanted.name}, {price.kind}"
    found += f", {price.region or 'region not stated'}"
    warning = " ".join(filter(None, (price.unsold, price.warning(today, plan.price_max_age_days))))
    return note("cost", f"{found}. {warning}", mend) if warning else ok("cost", f"{found} ({price.source})")


def seen_here(devices: Path = Path("/dev")) -> SeenAccelerators:
    """Ask NVIDIA's driver and the device files of TPUs (`/dev/accel*`, or `/dev/vfio/N` from v5e on)."""
    gpus = tuple(_gpu(line) for line in printed(*_QUERY, seconds=6.0).splitlines() if line.count(",") >= 2)
    cuda = re.search(r"CUDA[\w ]* Version:\s*([\d.]+)", printed("nvidia-smi", seconds=6.0)) if gpus else None
    tpus = len(list(devices.glob("accel[0-9]*"))) or len(list(devices.glob("vfio/[0-9]*")))
    return SeenAccelerators(
        gpus, cuda[1] if cuda else "", 0 if gpus else tpus
    )  # A GPU that is passed through to a guest has a vfio file too.


def _gpu(line: str) -> SeenGpu:
    name, memory, driver = (part.strip() for part in line.rsplit(",", 2))
    return SeenGpu(name, (int(memory) if memory.isdigit() else 0) << 20, driver)


def _is(gpu: SeenGpu, device: Gpu, wanted: Slice) -> bool:
    named = device.accelerator_type.partition("-")[0].upper() in gpu.name.upper()
    size = wanted.chip.hbm_bytes if wanted.chip is not None and gpu.memory_bytes else 0
    return named and (not size or abs(gpu.memory_bytes - size) <= _MEMORY_SHARE * size)
