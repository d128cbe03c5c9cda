import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from crossmesh.track import system
from crossmesh.track.system import Sampler, sampling, tpu_values


def test_a_block_gets_samples_and_one_at_its_end_and_no_failing_sample_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[dict[str, float]] = []

    def sink(values: dict[str, float]) -> None:
        taken.append(values)
        if len(taken) == 1:
            raise OSError("no space")

    monkeypatch.setattr(system, "EVERY_S", 0.05)
    with sampling(sink):
        time.sleep(0.3)
    assert len(taken) >= 3
    monkeypatch.setattr(system, "EVERY_S", 60.0)
    with sampling(sink):
        before = len(taken)
    assert len(taken) == before + 1
    assert 0 < taken[-1]["system_memory_usage_percentage"] < 100


def test_gpus_are_sampled_by_index_and_what_one_does_not_tell_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    def utilization(handle: int) -> Any:
        if handle == 1:
            raise NVMLError
        return SimpleNamespace(gpu=37)

    nvml = ModuleType("pynvml")
    vars(nvml).update(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=20e9, total=80e9),
        nvmlDeviceGetUtilizationRates=utilization,
        nvmlDeviceGetPowerUsage=lambda handle: 350_000,
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700_000,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    values = {key: value for key, value in Sampler().sample().items() if key.startswith("gpu_")}
    assert values["gpu_0_memory_usage_percentage"] == 25.0
    assert values["gpu_1_memory_usage_megabytes"] == 20_000.0
    assert (values["gpu_0_utilization_percentage"], "gpu_1_utilization_percentage" in values) == (37.0, False)
    assert (values["gpu_1_power_usage_watts"], values["gpu_1_power_usage_percentage"]) == (350.0, 50.0)


def _tpu_info(monkeypatch: pytest.MonkeyPatch, kind: object, usage: Any) -> None:
    package = ModuleType("tpu_info")
    vars(package).update(
        device=SimpleNamespace(get_local_chips=lambda: (kind, 4 if kind else 0)), metrics=SimpleNamespace(get_chip_usage=usage)
    )
    monkeypatch.setitem(sys.modules, "tpu_info", package)


def test_tpus_are_sampled_through_tpu_info_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    def usage(kind: object) -> list[Any]:
        assert kind == "v5p"
        return [SimpleNamespace(device_id=index, memory_usage=19e9, total_memory=95e9, duty_cycle_pct=88.5) for index in range(2)]

    def silent(kind: object) -> list[Any]:
        raise ConnectionError("no process computes")

    _tpu_info(monkeypatch, "v5p", usage)
    assert Sampler().sample()["tpu_1_memory_usage_percentage"] == 20.0
    assert tpu_values()["tpu_0_duty_cycle_percentage"] == 88.5
    _tpu_info(monkeypatch, "v5p", silent)
    sample = Sampler().sample()
    assert "cpu_utilization_percentage" in sample
    assert not [key for key in sample if key.startswith("tpu_")]
    _tpu_info(monkeypatch, None, usage)
    assert tpu_values() == {}
