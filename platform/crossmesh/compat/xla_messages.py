"""XLA and the accelerators' runtimes: what their errors say. Text only; nothing is imported."""

import re
from dataclasses import dataclass

_TOO_MUCH = re.compile(r"Ran out of memory in memory space hbm\. Used ([0-9.]+)([KMGT]?) of")
_TOO_MUCH_AT_WORK = re.compile(r"total memory required for HLO temporaries \(([0-9.]+)([KMGT]?)\) exceeds available HBM")
_UNITS = {unit: 1024.0**power for power, unit in enumerate(("", "K", "M", "G", "T"))}
_TAKEN = re.compile(r"already in use|out of memory|RESOURCE_EXHAUSTED|all CUDA-capable devices are busy", re.IGNORECASE)
_UNKNOWN_FLAG = re.compile(r"unknown (?:command line )?flag[^\n]*", re.IGNORECASE)


@dataclass(frozen=True)
class NeededMemory:
    """Memory of a chip that a program needs and that the chip does not have."""

    bytes: float
    temporaries: bool
    """Whether that is without the program's arguments."""


def needed_memory(message: str) -> NeededMemory | None:
    """What XLA's TPU compiler says a program needs, when that is why it refused; None when it is not."""
    for pattern, temporaries in ((_TOO_MUCH, False), (_TOO_MUCH_AT_WORK, True)):
        if match := pattern.search(message):
            return NeededMemory(float(match[1]) * _UNITS[match[2]], temporaries)
    return None


def is_taken(output: str) -> bool:
    """Whether a process could not use a chip because another one does."""
    return _TAKEN.search(output) is not None


def unknown_flag(output: str) -> str | None:
    """The line about a flag that the installed XLA or libtpu does not know."""
    return match[0].strip() if (match := _UNKNOWN_FLAG.search(output)) else None
