"""How a benchmarked server was asked, as a run's parameters say it: by what had an effect."""

import pytest

from crossmesh.config.bench import TRACE_DIGEST, BenchSpec
from crossmesh.report.stored import _workload
from crossmesh.track.flatten import flatten
from crossmesh.track.tracked_run import TrackedRun


def workload(digest: str = "", **bench: object) -> dict[str, str]:
    params = flatten({"bench": BenchSpec(**bench), **({TRACE_DIGEST: digest} if digest else {})})
    return _workload(TrackedRun("r", "benchmark", "FINISHED", {}, params=params))


def trace(digest: str, path: str = "/one.csv", **scales: float) -> dict[str, str]:
    return workload(digest, load="trace", trace=path, **scales)


def test_a_trace_is_another_load_by_what_it_holds_and_how_it_is_played() -> None:
    assert trace("a") == trace("a", "/elsewhere.csv")
    others = [trace("a"), trace("b"), trace("a", time_scale=2.0), trace("a", length_scale=0.5)]
    assert len({str(one) for one in others}) == 4
    assert trace("a")["trace"] == "a"


def test_a_run_that_names_its_trace_by_path_alone_is_not_taken_for_one_with_its_contents() -> None:
    older = workload(load="trace", trace="/one.csv")
    assert older["trace"] == "/one.csv"
    assert older != trace("a")


@pytest.mark.parametrize(("key", "value"), [("seconds", 30.0), ("cache", "warm"), ("warmup", 0), ("requests", 8), ("burstiness", 2.0)])
def test_how_a_rate_was_offered_is_part_of_it(key: str, value: object) -> None:
    assert workload(**{key: value}) != workload()


@pytest.mark.parametrize("key", ["time_scale", "length_scale"])
def test_what_only_a_trace_has_is_no_part_of_another_load(key: str) -> None:
    assert workload(**{key: 2.0}) == workload()


def test_seconds_are_of_rates_alone() -> None:
    assert workload(load="burst", seconds=9.0) == workload(load="burst")
