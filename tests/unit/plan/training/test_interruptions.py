"""Hours and price of a run with its queue, its starts and its interruptions."""

import json
import os
from datetime import date
from pathlib import Path

import pytest

from crossmesh.config.planning import PlanSpec
from crossmesh.errors import InputError
from crossmesh.plan.record import training_record
from crossmesh.plan.training.forecast import Forecast, forecast
from crossmesh.plan.training.interruptions import parse_trace
from plan_points import paper_point

TODAY = date(2026, 6, 1)


def planned(plan: PlanSpec, **values: object) -> Forecast:
    return forecast(paper_point(**values), plan, TODAY)


def write(folder: Path, data: list[int], gap_s: float = 1800) -> str:
    path = folder / "trace.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": gap_s}, "data": data}))
    return str(path)


def test_by_default_the_steps_alone_are_counted() -> None:
    one = planned(PlanSpec())
    assert one.stages is not None
    assert one.stages.hours == {"steps": one.hours}
    assert "[" not in one.text


def test_a_queue_takes_time_and_no_money_and_a_start_takes_both() -> None:
    plain, other = planned(PlanSpec()), planned(PlanSpec(queue_hours=6, start_minutes=30))
    assert plain.hours is not None
    assert other.hours == pytest.approx(plain.hours + 6.5)
    assert other.usd == pytest.approx((plain.hours + 0.5) * 16.80)
    assert "[queue 6.00, start 0.50, steps" in other.text


def test_each_interruption_costs_a_start_and_half_of_what_is_between_checkpoints() -> None:
    plain = planned(PlanSpec())
    assert plain.figures is not None
    assert plain.hours is not None
    plan = PlanSpec(start_minutes=12, interruptions_per_day=12, outage_minutes=90)
    found = planned(plan, checkpoint_steps=100)
    half = 50 * plain.figures.step_s / 3600
    up = (0.2 + plain.hours) / (1 - 0.5 * (0.2 + half))  # Half an interruption an hour.
    assert found.stages is not None
    assert found.stages.interruptions == pytest.approx(0.5 * up)
    assert found.stages.paid == pytest.approx(up)
    assert found.hours == pytest.approx(up + 0.5 * up * 1.5)
    assert found.usd == pytest.approx(up * 16.80)
    assert found.stages.hours["repeated"] == pytest.approx(0.5 * up * half)
    # Checkpoints by time bound what is repeated.
    often = planned(plan, checkpoint_steps=100, checkpoint_minutes=0.5)
    assert often.stages is not None
    assert often.stages.hours["repeated"] == pytest.approx(often.stages.interruptions / 240)
    assert "repeated" in (training_record("x", often).stages or {})["sources"]


def test_a_run_that_is_interrupted_faster_than_it_gets_on_is_rejected() -> None:
    found = planned(PlanSpec(start_minutes=30, interruptions_per_day=60))
    assert not found.fits
    assert found.hours is found.usd is None
    assert "never ends: 2.5 interruptions an hour (plan.interruptions_per_day" in found.reasons[0]


def test_the_budget_is_that_of_all_stages() -> None:
    hours = planned(PlanSpec()).hours
    assert hours is not None
    assert planned(PlanSpec(max_hours=hours + 1)).fits
    assert not planned(PlanSpec(max_hours=hours + 1, queue_hours=2)).fits


def test_a_trace_says_how_often_and_how_long_nodes_are_gone(tmp_path: Path) -> None:
    path = Path(write(tmp_path, [0, 2, 2, 0, 0, 2, 1, 2, 2, 0]))  # Half hours.
    two, one = parse_trace(path, 2), parse_trace(path, 1)
    assert (two.per_hour, two.outage_hours) == (3 / 2.5, (1.0 + 0.5) / 2)  # The last outage does not end within it.
    assert (one.per_hour, one.outage_hours) == (2 / 3, 1.0)
    assert "measured over 0.2 days in trace.json" in two.source
    with pytest.raises(InputError, match="3 nodes are never there, at most 2"):
        parse_trace(path, 3)
    with pytest.raises(InputError, match="how long an outage lasts is not in it"):
        parse_trace(Path(write(tmp_path, [4] * 10 + [0] * 1000)), 4)


@pytest.mark.parametrize("text", ["", "[1, 0]", '{"metadata": {"gap_seconds": 0}, "data": [1]}', '{"metadata": {}, "data": []}'])
def test_another_form_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(InputError, match="is not a trace of available nodes"):
        parse_trace(path, 1)
    with pytest.raises(InputError, match="cannot be read"):
        parse_trace(tmp_path / "none.json", 1)


def test_a_trace_and_its_figures_are_not_given_twice() -> None:
    with pytest.raises(InputError, match=r"plan\.spot_trace"):
        PlanSpec(spot_trace="x", interruptions_per_day=1)


@pytest.mark.skipif("CROSSMESH_TEST_DATA" not in os.environ, reason="needs measured traces")
def test_measured_traces_are_read() -> None:
    folder = Path(os.environ["CROSSMESH_TEST_DATA"]) / "spot_traces"
    found = {path.name.partition("_us-")[0]: parse_trace(path, 1) for path in folder.glob("*.json")}
    assert len(found) == 4
    # A GCP instance over two days; an AWS one over four weeks that came and went all the time.
    steady, restless = found["preemption_1-node_gcp-04-30-2023"], found["availability_1-node_aws-10-26-2022"]
    assert steady.per_hour < 0.15
    assert restless.per_hour > 1
