import multiprocessing
import time

from crossmesh.track.load import OTHERS, STEAL, LoadMeter, load_reasons


def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_what_is_under_load_says_why():
    assert load_reasons({STEAL: 2.0, OTHERS: 3.0}) == ()
    assert load_reasons({STEAL: 12.4}) == ("12% of the CPUs stolen by the host",)
    assert load_reasons({OTHERS: 40.0, "cpu_throttles": 3}) == (
        "40% of the CPUs used by other processes",
        "CPUs throttled 3 times for heat",
    )


def test_a_meter_that_was_not_started_says_nothing():
    assert LoadMeter().read() == {}


def test_the_own_work_of_a_run_is_no_load():
    """A child that keeps one CPU busy is the run's own: what others use does not grow by it."""
    meter = LoadMeter()
    child = multiprocessing.get_context("spawn").Process(target=spin, args=(0.5,))
    child.start()
    meter.start()
    before = time.process_time()
    spin(0.3)
    meter.note()
    found = meter.read()
    child.join()
    assert time.process_time() > before
    assert found["seconds"] >= 0.3
    assert 0.0 <= found[OTHERS] <= 100.0
    assert 0.0 <= found[STEAL] <= 100.0
