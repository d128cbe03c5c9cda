"""What else kept a machine busy while a run took its steps: stolen and foreign CPU time, memory pressure, clocks and throttling.

Measured once over all steps but those that compile, on the host of the process that asks; what a host does not tell is left out.
"""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from crossmesh.track.system import gpus

STEAL, OTHERS, MEMORY, CLOCK, THROTTLED, GPU_THROTTLED = (
    "steal_percent",
    "others_percent",
    "memory_pressure_percent",
    "clock_mhz",
    "cpu_throttles",
    "gpu_throttled_percent",
)
_LIMITS = {
    STEAL: (3.0, "{:.0f}% of the CPUs stolen by the host"),
    OTHERS: (15.0, "{:.0f}% of the CPUs used by other processes"),
    MEMORY: (5.0, "{:.0f}% of the time waiting for memory"),
    THROTTLED: (0.5, "CPUs throttled {:.0f} times for heat"),
    GPU_THROTTLED: (5.0, "a GPU slowed down for heat or power {:.0f}% of the time"),
}
"""Above which a run counts as under load, and how that is said."""
_RAYLET = "raylet"
_MEMORY_PRESSURE = Path("/proc/pressure/memory")
_THROTTLES = "sys/devices/system/cpu/cpu*/thermal_throttle/core_throttle_count"
_SLOWED = 0x08 | 0x20 | 0x40 | 0x80
"""NVML's clock event reasons that are no choice of ours: hardware slowdown, software and hardware thermal, power brake."""


def load_reasons(load: Mapping[str, float]) -> tuple[str, ...]:
    """Say what makes a run one under load; empty where nothing does."""
    return tuple(words.format(load[key]) for key, (limit, words) in _LIMITS.items() if load.get(key, 0.0) > limit)


class LoadMeter:
    """Measures from `start` to `read`; `note` in between samples what has no counter."""

    def __init__(self) -> None:
        self._begun: dict[str, Any] | None = None
        self._clocks: list[float] = []
        self._slowed: list[bool] = []
        self._gpus = gpus()

    def start(self) -> None:
        """Begin, or begin again."""
        self._clocks, self._slowed = [], []
        with suppress(Exception):  # A host without these counters is measured by what it has; the run matters more.
            self._begun = _counters()

    def note(self) -> None:
        """Sample clocks and the GPUs' reasons to slow down."""
        with suppress(Exception):
            import psutil

            if frequency := psutil.cpu_freq():
                self._clocks.append(float(frequency.current))
        if self._gpus:
            nvml, handles = self._gpus
            for handle in handles:
                with suppress(nvml.NVMLError):
                    self._slowed.append(bool(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & _SLOWED))

    def read(self) -> dict[str, float]:
        """Return what was measured since `start`; empty without one."""
        if self._begun is None:
            return {}
        try:
            now = _counters()
        except Exception:  # noqa: BLE001  # As in `start`.
            return {}
        before, total = self._begun, now["total"] - self._begun["total"]
        seconds = now["at"] - before["at"]
        if total <= 0 or seconds <= 0:
            return {}
        own = sum(cpu - before["own"].get(process, 0.0) for process, cpu in now["own"].items())
        found = {
            "seconds": seconds,
            STEAL: 100 * (now["steal"] - before["steal"]) / total,
            OTHERS: max(0.0, 100 * (now["busy"] - before["busy"] - own) / total),
        }
        if "memory" in now and "memory" in before:
            found[MEMORY] = 100 * (now["memory"] - before["memory"]) / seconds
        if now["throttles"] is not None and before["throttles"] is not None:
            found[THROTTLED] = float(now["throttles"] - before["throttles"])
        if self._clocks:
            found[CLOCK] = sum(self._clocks) / len(self._clocks)
        if self._slowed:
            found[GPU_THROTTLED] = 100 * sum(self._slowed) / len(self._slowed)
        return found


def _counters() -> dict[str, Any]:
    import psutil

    times = psutil.cpu_times()
    fields = times._asdict()
    steal, idle = fields.get("steal", 0.0), fields["idle"] + fields.get("iowait", 0.0)
    # Time of guests is in that of users already.
    total = sum(value for name, value in fields.items() if not name.startswith("guest"))
    throttles = [int(file.read_text()) for file in Path("/").glob(_THROTTLES)]
    found = {"at": time.monotonic(), "total": total, "steal": steal, "busy": total - idle - steal, "own": own_cpu_seconds()}
    found["throttles"] = sum(throttles) if throttles else None
    with suppress(OSError, ValueError, IndexError):
        line = _MEMORY_PRESSURE.read_text().splitlines()[0]
        found["memory"] = int(line.rpartition("total=")[2]) / 1e6
    return found


def own_cpu_seconds() -> dict[tuple[int, float], float]:
    """CPU seconds of every process of this run: the driver's, or the node's Ray, and all below it."""
    import psutil

    root = psutil.Process(os.getpid())
    for parent in root.parents():
        if parent.name() == _RAYLET:
            above = parent.parent()
            root = above if above is not None and above.pid > 1 else parent
            break
    found = {}
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error):
            times = process.cpu_times()
            found[process.pid, process.create_time()] = times.user + times.system + times.children_user + times.children_system
    return found
