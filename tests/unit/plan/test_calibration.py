"""Own runs against the model: which runs count, as they really ran, and what their ratios come to."""

from dataclasses import asdict, replace
from typing import Any, cast

import pytest

from crossmesh.plan.calibration import Calibration, as_it_ran, calibrations, own_calibrations
from crossmesh.plan.figures import figures, modelled
from crossmesh.plan.point import training_point
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.spec.planning import PlanSpec
from crossmesh.spec.training import BatchSpec, HardwareSpec, MeshSpec, OptimSpec, PackingSpec
from crossmesh.track.tracker import TrackedRun, Tracker
from plan_points import paper_spec

SPEC = paper_spec(optim=OptimSpec(steps=100), plan=PlanSpec(mean_tokens=500.0))
METRICS = {"train/tokens": 100 * 8 * 922.0, "train/tokens_per_s_steady": 763.0, "train/packing_efficiency": 0.3}


class Runs:
    """A tracker with these runs, each with its spec."""

    def __init__(self, *runs: tuple[ExperimentSpec, dict[str, float]]) -> None:
        self._runs = runs

    def recent(self, kind: str, limit: int) -> tuple[TrackedRun, ...]:
        assert kind == "train"
        return tuple(
            TrackedRun(str(index), spec.backend_name, "FINISHED", params={"hardware.name": spec.hardware.name}, metrics=metrics)
            for index, (spec, metrics) in enumerate(self._runs[:limit])
        )

    def read_json(self, run_id: str, path: str) -> Any:
        assert path == "records/spec.json"
        return asdict(self._runs[int(run_id)][0])


def found(*runs: tuple[ExperimentSpec, dict[str, float]]) -> Any:
    return own_calibrations(cast("Tracker", Runs(*runs)))


def test_a_run_counts_with_the_tokens_that_it_had() -> None:
    # 922 tokens a row whatever the plan thought: 8 x 922 / 763 = 9.667 s a step were measured.
    point = as_it_ran(training_point(SPEC), SPEC, METRICS)
    assert (point.filling.tokens, point.filling.sequences) == (pytest.approx(8 * 922), 8.0)
    one = found((SPEC, METRICS))["v5p", "jax"]
    assert one.factor == pytest.approx(8 * 922 / 763 / modelled(point).step_s)
    assert (one.low, one.high, one.runs) == (one.factor, one.factor, 1)


def test_packed_sequences_follow_from_the_efficiency() -> None:
    packed = replace(SPEC, packing=PackingSpec(mode="step"))
    metrics = {**METRICS, "train/packing_efficiency": 8 * 922 / (3 * 3072)}
    assert as_it_ran(training_point(packed), packed, metrics).filling.sequences == 3.0
    on_two = replace(packed, mesh=MeshSpec(fsdp=2, tp=2), batch=BatchSpec(8, 1))
    assert as_it_ran(training_point(on_two), on_two, metrics).filling.sequences == 4.0


def test_the_median_and_the_range_of_several_runs() -> None:
    many = calibrations([("h100", "torch", 1.4), ("h100", "torch", 1.0), ("h100", "torch", 1.1), ("v5p", "jax", 2.0)])
    assert many["h100", "torch"] == Calibration("h100", "torch", 1.1, 1.0, 1.4, 3)
    assert many["h100", "torch"].text.endswith("times 1.10, as 3 own runs measured, 1.00 to 1.40.")
    assert many["v5p", "jax"].runs == 1


def test_runs_on_cpus_unfinished_ones_and_unreadable_ones_do_not_count() -> None:
    on_cpu = replace(SPEC, hardware=HardwareSpec("cpu"), mesh=MeshSpec())
    gone = replace(SPEC, model=replace(SPEC.model, weights="hf://nobody/nothing"))
    assert found((on_cpu, METRICS), (SPEC, {"train/tokens": 1.0}), (gone, METRICS)) == {}


def test_the_factor_multiplies_time_alone_and_the_compilers_bound_stays() -> None:
    point = training_point(SPEC)
    own, twice = figures(point), figures(point, factor=2.0)
    assert (twice.step_s, twice.factor) == (2 * own.step_s, 2.0)
    assert (twice.hbm_bytes, twice.phases, twice.step_source) == (own.hbm_bytes, own.phases, "modelled")
