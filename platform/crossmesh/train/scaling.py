"""How many Ray Train workers a slice needs and what each asks for: a pure function of the device."""

from dataclasses import dataclass, field

from crossmesh.hardware.devices import Cpu, Device, Gpu, Tpu


@dataclass(frozen=True)
class Scaling:
    """Arguments of `ray.train.ScalingConfig`."""

    num_workers: int
    use_gpu: bool = False
    use_tpu: bool = False
    topology: str | None = None
    accelerator_type: str | None = None
    resources_per_worker: dict[str, float] = field(default_factory=dict)


def scaling(device: Device) -> Scaling:
    """One worker on a CPU, one for each GPU, one for each host of a TPU slice with all chips of it."""
    match device:
        case Cpu():
            return Scaling(1, resources_per_worker={"CPU": 1})
        case Gpu():
            return Scaling(device.count, use_gpu=True, accelerator_type=device.accelerator_type, resources_per_worker={"GPU": 1})
        case Tpu():
            return Scaling(
                device.chip_count() // device.chips_per_host,
                use_tpu=True,
                topology=device.topology,
                accelerator_type=f"TPU-{device.chip.upper()}",
                resources_per_worker={"TPU": device.chips_per_host},
            )
