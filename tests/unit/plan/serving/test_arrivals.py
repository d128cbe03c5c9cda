"""Requests of a load: rates, lengths, and what is said of a trace."""

from pathlib import Path
from statistics import fmean

import pytest

from crossmesh.config.planning import PlanSpec
from crossmesh.errors import InputError
from crossmesh.plan.serving.arrivals import planned_load

TRACE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:50.6805900,396,109\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:56.6805900,9000,5"
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def test_poisson_arrivals_have_the_rate_and_the_lengths() -> None:
    plan = PlanSpec(workload="serve", qps=5.0, duration=2000.0, prompt_tokens=1000, prompt_p99_tokens=4000, output_tokens=200, seed=3)
    load = planned_load(plan, 100_000)
    assert len(load.requests) == pytest.approx(10_000, rel=0.03)
    prompts = sorted(request.prompt for request in load.requests)
    assert fmean(prompts) == pytest.approx(1000, rel=0.03)
    assert prompts[int(0.99 * len(prompts))] == pytest.approx(4000, rel=0.1)
    assert {request.output for request in load.requests} == {200}
    gaps = [after.arrival_s - before.arrival_s for before, after in zip(load.requests, load.requests[1:], strict=False)]
    # Gaps of a Poisson process are exponential: their variance is the square of their mean.
    assert fmean(gap * gap for gap in gaps) == pytest.approx(2 * fmean(gaps) ** 2, rel=0.05)
    assert planned_load(plan, 100_000) == load
    assert planned_load(PlanSpec(workload="serve", qps=5.0, seed=4), 100_000) != load


def test_no_request_is_longer_than_the_engine_takes() -> None:
    load = planned_load(PlanSpec(qps=5.0, prompt_tokens=900, prompt_p99_tokens=3000, output_tokens=300, output_p99_tokens=2500), 1300)
    assert max(request.prompt + request.output for request in load.requests) == 1300
    assert min(min(request.prompt, request.output) for request in load.requests) >= 1


def test_nothing_asked_nothing_simulated() -> None:
    assert planned_load(PlanSpec(workload="serve"), 1000) is None


def test_what_of_a_trace_is_left_out_is_said(trace: Path) -> None:
    whole = planned_load(PlanSpec(trace=str(trace), duration=0.0), 20_000)
    assert (len(whole.requests), whole.qps, whole.notes) == (3, 0.2, ())
    short = planned_load(PlanSpec(trace=str(trace), duration=0.0), 1000)
    assert len(short.requests) == 2
    assert "1 requests of the trace are over serve.max_model_len=1000" in short.notes[0]
    first = planned_load(PlanSpec(trace=str(trace), duration=5.0), 1000)
    assert "the first 2 of the trace's 3 requests" in first.notes[0]


def test_what_a_cache_would_save_is_said_and_not_simulated(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    row = '{"timestamp": %d, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
    path.write_text(row % 1000 + row % 2000)
    load = planned_load(PlanSpec(trace=str(path), duration=0.0), 1000)
    assert [one.arrival_s for one in load.requests] == [0.0, 1.0]
    assert load.notes == ("Prompts of the trace begin alike; what a prefix cache would save of them is not simulated.",)


def test_a_rate_draws_a_trace_closer(trace: Path) -> None:
    load = planned_load(PlanSpec(trace=str(trace), qps=2.0, duration=0.0), 20_000)
    assert [one.arrival_s for one in load.requests] == pytest.approx([0.0, 0.4, 1.0])
    assert load.qps == pytest.approx(2.0)


def test_loads_that_cannot_be() -> None:
    with pytest.raises(InputError, match=r"gone.csv"):
        planned_load(PlanSpec(trace="gone.csv"), 1000)
    with pytest.raises(InputError, match=r"600,000 requests.*Shorten plan.duration"):
        planned_load(PlanSpec(qps=1000.0), 1000)
    with pytest.raises(InputError, match=r"Lengthen plan.duration"):
        planned_load(PlanSpec(qps=1e-9), 1000)
    with pytest.raises(InputError, match=r"plan.requests=8"):
        PlanSpec(qps=1.0, requests=8)
    with pytest.raises(InputError, match=r"plan.duration=0"):
        PlanSpec(qps=1.0, duration=0.0)
