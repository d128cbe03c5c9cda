"""The devices that a worker may ask for, as a closed union of frozen dataclasses that know how many chips they are."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cpu:
    """Plain CPU cores, used as one device or split into several emulated ones."""

    chip: str = "cpu"
    count: int = 1

    def chip_count(self) -> int:
        """Devices it is split into."""
        return self.count


@dataclass(frozen=True)
class Gpu:
    """GPUs of one node type."""

    chip: str
    count: int
    accelerator_type: str
    """Ray's name of the chip, e.g. `H100`."""

    def chip_count(self) -> int:
        """GPUs over all nodes."""
        return self.count


@dataclass(frozen=True)
class Tpu:
    """One TPU slice."""

    chip: str
    topology: str
    """Chips along each axis of the interconnect, e.g. `2x2x1`."""
    accelerator_type: str
    """Ray's name of the pod type, e.g. `v5p-8` (v5p counts cores: 4 chips)."""
    chips_per_host: int

    def chip_count(self) -> int:
        """Product of the topology."""
        count = 1
        for size in self.topology.split("x"):
            count *= int(size)
        return count


Device = Cpu | Gpu | Tpu
