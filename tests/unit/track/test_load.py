import multiprocessing
import os
import time

from crossmesh.track import load
from crossmesh.track.load import OTHERS, STEAL, LoadMeter, load_reasons, own_cpu_seconds


def test_what_is_under_load_says_why():
    assert load_reasons({STEAL: 2.0, OTHERS: 3.0}) == ()
    assert load_reasons({STEAL: 12.4}) == ("12% of the CPUs stolen by the host",)
    assert load_reasons({OTHERS: 40.0, "cpu_throttles": 3}) == (
        "40% of the CPUs used by other processes",
        "CPUs throttled 3 times for heat",
    )


def test_a_meter_that_was_not_started_says_nothing():
    assert LoadMeter().read() == {}


def test_the_processes_below_a_run_are_its_own_and_what_they_use_is_no_load():
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(30,))
    child.start()
    try:
        assert {os.getpid(), child.pid} <= {pid for pid, _ in own_cpu_seconds()}
        assert 1 not in {pid for pid, _ in own_cpu_seconds()}
    finally:
        child.kill()
        child.join()


def test_a_meter_measures_from_its_start(monkeypatch):
    """Of 10 CPU seconds 1 was stolen, 6 were busy and 4 of these the run's own: 2 were others'."""
    at = [
        {"at": 0.0, "total": 100.0, "steal": 5.0, "busy": 50.0, "own": {(1, 0.0): 20.0}, "memory": 1.0, "throttles": 4},
        {"at": 5.0, "total": 110.0, "steal": 6.0, "busy": 56.0, "own": {(1, 0.0): 21.0, (2, 1.0): 3.0}, "memory": 1.5, "throttles": 7},
    ]
    monkeypatch.setattr(load, "_counters", lambda: at.pop(0))
    meter = LoadMeter()
    meter.start()
    assert meter.read() == {"seconds": 5.0, STEAL: 10.0, OTHERS: 20.0, "memory_pressure_percent": 10.0, "cpu_throttles": 3.0}
