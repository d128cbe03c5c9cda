"""What a host is busy with, sampled: processors, memory, disk and network, GPUs through NVIDIA's library, TPUs through tpu-info.

Names are those of MLflow's own monitor, which shows them under "System metrics". That monitor itself is not used: importing MLflow takes a
training worker three seconds at its start, and it ends when the server is away once. Libraries that are not there are left out.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

EVERY_S = 5.0
_LONGEST_S = 5.0
Values = dict[str, float]


@contextmanager
def sampling(sink: Callable[[Values], None]) -> Iterator[None]:
    """Give `sink` a sample every 5 s while the block runs, and at its end, from a thread of its own; one that fails stops nothing."""
    ended = threading.Event()
    thread = threading.Thread(target=_sample_until, args=(ended, sink), name="system-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_LONGEST_S)  # A library that hangs must not hold the run.


def _sample_until(ended: threading.Event, sink: Callable[[Values], None]) -> None:
    sampler = Sampler()
    while True:
        last = ended.wait(EVERY_S)
        with suppress(Exception):  # A library that breaks off, a disk that is full: the run matters more.
            sink(sampler.sample())
        if last:
            return


class Sampler:
    """Samples this host; what it has is found out once."""

    def __init__(self) -> None:
        import psutil

        self._psutil = psutil
        psutil.cpu_percent()  # Utilisation is what lies between two calls.
        self._network = psutil.net_io_counters()
        self._gpus = gpus()

    def sample(self) -> Values:
        """Return the values of now; network as megabytes since the start, processors as the mean since the last sample."""
        memory, disk, network = self._psutil.virtual_memory(), self._psutil.disk_usage(os.sep), self._psutil.net_io_counters()
        values = {
            "cpu_utilization_percentage": self._psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / 1e6,
            "system_memory_usage_percentage": memory.used / memory.total * 100,
            "disk_usage_percentage": disk.percent,
            "disk_usage_megabytes": disk.used / 1e6,
            "disk_available_megabytes": disk.free / 1e6,
        }
        if network and self._network:  # Some containers show no network.
            values["network_receive_megabytes"] = (network.bytes_recv - self._network.bytes_recv) / 1e6
            values["network_transmit_megabytes"] = (network.bytes_sent - self._network.bytes_sent) / 1e6
        values |= self._gpu_values()
        with suppress(Exception):  # libtpu tells nothing before a process computes; the rest counts nevertheless.
            values |= tpu_values()
        return values

    def _gpu_values(self) -> Values:
        values: Values = {}
        if self._gpus is None:
            return values
        nvml, handles = self._gpus
        for index, handle in enumerate(handles):
            with suppress(nvml.NVMLError):
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
                values[f"gpu_{index}_memory_usage_percentage"] = memory.used / memory.total * 100
                values[f"gpu_{index}_memory_usage_megabytes"] = memory.used / 1e6
            with suppress(nvml.NVMLError):
                values[f"gpu_{index}_utilization_percentage"] = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            with suppress(nvml.NVMLError):
                watts = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
                values[f"gpu_{index}_power_usage_watts"] = watts
                values[f"gpu_{index}_power_usage_percentage"] = watts / nvml.nvmlDeviceGetEnforcedPowerLimit(handle) * 1e5
        return values


def gpus() -> tuple[Any, list[Any]] | None:
    """NVIDIA's library and the handles of the host's GPUs; None without either."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return pynvml, [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return None


def tpu_values() -> Values:
    """HBM and duty cycle of the host's TPU devices, as libtpu tells tpu-info while a process computes on them; empty otherwise."""
    try:
        from tpu_info import device, metrics
    except ImportError:
        return {}
    kind, _ = device.get_local_chips()
    if kind is None:
        return {}
    values: Values = {}
    for usage in metrics.get_chip_usage(kind):
        name = f"tpu_{usage.device_id}"
        values[f"{name}_memory_usage_megabytes"] = usage.memory_usage / 1e6
        values[f"{name}_memory_usage_percentage"] = usage.memory_usage / usage.total_memory * 100
        values[f"{name}_duty_cycle_percentage"] = usage.duty_cycle_pct
    return values
