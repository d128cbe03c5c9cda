"""How many Ray Train workers a run needs and what each asks for: a pure function of device, backend and number of slices."""

from dataclasses import dataclass, field
from typing import Any

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.hardware.devices import Cpu, Device, Gpu, Tpu

_CPU_UNITS = 10_000
"""Ray counts fractions of a CPU in ten-thousandths."""


@dataclass(frozen=True)
class Scaling:
    """The workers of a run."""

    num_workers: int
    devices_per_worker: int = 1
    """Chips, or CPU devices, that one worker computes on."""
    use_gpu: bool = False
    use_tpu: bool = False
    topology: str | None = None
    accelerator_type: str | None = None
    placement_strategy: str = "PACK"
    resources_per_worker: dict[str, float] = field(default_factory=dict)

    @property
    def ray_arguments(self) -> dict[str, Any]:
        """Arguments of `ray.train.ScalingConfig`."""
        return {
            "num_workers": self.num_workers,
            "use_gpu": self.use_gpu,
            "use_tpu": self.use_tpu,
            "topology": self.topology,
            "accelerator_type": self.accelerator_type,
            "placement_strategy": self.placement_strategy,
            "resources_per_worker": dict(self.resources_per_worker),
        }


def scaling(spec: ExperimentSpec) -> Scaling:
    """The workers that `spec` needs on its hardware, rented `mesh.dcn` times."""
    return workers_of(spec.hardware.slice.device, spec.backend_name, spec.mesh.dcn)


def workers_of(device: Device, backend: str, slices: int) -> Scaling:
    """A worker for each device under torch; under JAX one for each machine, with all devices of it.

    A CPU stands for one machine, slices and all: its workers share what one would ask for, and stay together.
    """
    match device:
        case Cpu():
            workers = device.count * slices if backend == "torch" else 1
            share = _CPU_UNITS // workers / _CPU_UNITS
            devices = device.count * slices // workers
            return Scaling(workers, devices, placement_strategy="STRICT_PACK", resources_per_worker={"CPU": share})
        case Gpu():
            # Under JAX, Ray gives every worker of a node the GPUs 0 to n-1, so a node can have only one.
            per_worker = 1 if backend == "torch" else device.count
            return Scaling(
                device.count // per_worker * slices,
                per_worker,
                use_gpu=True,
                accelerator_type=device.accelerator_type,
                placement_strategy="STRICT_PACK" if slices == 1 else "PACK",
                resources_per_worker={"GPU": per_worker},
            )
        case Tpu():
            return Scaling(
                device.hosts * slices,
                device.chips_per_host,
                use_tpu=True,
                topology=device.topology,
                accelerator_type=device.accelerator,
                resources_per_worker=_tpu_resources(device),
            )


def _tpu_resources(device: Tpu) -> dict[str, float]:
    """All chips of a host; and for a slice of one host its head resource, because Ray would also take a host of a larger slice."""
    resources: dict[str, float] = {"TPU": device.chips_per_host}
    if device.hosts == 1:
        resources[device.head_resource] = 1
    return resources
