"""Whether TPUs and GPUs are stood in for by CPU devices: the one question, for those who choose devices and for those who record runs."""

import os

from crossmesh.hardware.devices import Cpu, Device


def emulating() -> bool:
    """Whether the user asks for it (`CROSSMESH_EMULATE=1`)."""
    return os.environ.get("CROSSMESH_EMULATE") == "1"


def emulated(device: Device) -> bool:
    """Whether work for `device` computes on CPU devices under its name: times, rates and prices say nothing of the real one then."""
    return emulating() and not isinstance(device, Cpu)
