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

    @property
    def hosts(self) -> int:
        """This machine."""
        return 1

    @property
    def node_resource(self) -> None:
        """Any node will do."""


@dataclass(frozen=True)
class Gpu:
    """The GPUs of one node."""

    chip: str
    count: int
    accelerator_type: str
    """Ray's name of the chip, e.g. `H100`."""

    def chip_count(self) -> int:
        """GPUs of the node."""
        return self.count

    @property
    def hosts(self) -> int:
        """Machines of it."""
        return 1

    @property
    def node_resource(self) -> str:
        """Ray's custom resource on every node that has this chip."""
        return f"accelerator_type:{self.accelerator_type}"


@dataclass(frozen=True)
class Tpu:
    """One TPU slice."""

    chip: str
    topology: str
    """Chips along each axis of the interconnect, e.g. `2x2x1`."""
    accelerator_type: str
    """Google's and Ray's name of the pod type, e.g. `v5p-8`. v5p counts cores, two a chip: `v5p-8` is 4 chips; v6e counts chips."""
    chips_per_host: int

    @property
    def accelerator(self) -> str:
        """Ray's name of the chip, e.g. `TPU-V5P`; that of a v5e is `TPU-V5LITEPOD`."""
        return f"TPU-{self.accelerator_type.rpartition('-')[0].upper()}"

    @property
    def node_resource(self) -> str:
        """Ray's custom resource on every node that has this chip."""
        return f"accelerator_type:{self.accelerator}"

    @property
    def head_resource(self) -> str:
        """Ray's custom resource on the first host of a slice; whoever has it has the slice."""
        return f"TPU-{self.accelerator_type}-head"

    @property
    def host_labels(self) -> dict[str, str]:
        """Ray's label on every host of this kind of slice, and of no other."""
        return {"ray.io/tpu-pod-type": self.accelerator_type}

    @property
    def hosts(self) -> int:
        """Machines that the slice spreads over."""
        return self.chip_count() // self.chips_per_host

    def chip_count(self) -> int:
        """Product of the topology."""
        count = 1
        for size in self.topology.split("x"):
            count *= int(size)
        return count


Device = Cpu | Gpu | Tpu
