"""Own runs against the model: which runs count, as they really ran, and what their ratios come to."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, cast

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.planning import PlanSpec
from crossmesh.config.training import BatchSpec, HardwareSpec, MeshSpec, ModelSpec, OptimSpec, PackingSpec
from crossmesh.plan.figures import figures, modelled
from crossmesh.plan.point import TrainingPoint, training_point
from crossmesh.plan.training.calibration import Measured, as_it_ran, calibration_of, own_measurements, work_of
from crossmesh.track.tracked_run import TrackedRun
from crossmesh.track.tracker import Tracker
from plan_points import paper_spec

SPEC = paper_spec(optim=OptimSpec(steps=100), plan=PlanSpec(mean_tokens=500.0))
METRICS = {"train/tokens": 100 * 8 * 922.0, "train/tokens_per_s_steady": 763.0, "train/packing_efficiency": 0.3}


class Runs:
    """A tracker with these runs, each with its spec, newest first."""

    def __init__(self, *runs: tuple[ExperimentSpec, dict[str, float]], tags: dict[str, str] | None = None, **system: Any) -> None:
        self._runs, self._tags, self._system = runs, tags or {}, system

    def recent(self, kind: str, without: Mapping[str, str] | None = None) -> tuple[TrackedRun, ...]:
        assert kind == "train"
        return tuple(
            TrackedRun(str(index), spec.backend_name, "FINISHED", self._tags, {"hardware.name": spec.hardware.name}, metrics)
            for index, (spec, metrics) in enumerate(self._runs)
        )

    def read_json(self, run_id: str, path: str) -> Any:
        return self._system if path == "records/system.json" else asdict(self._runs[int(run_id)][0])


def found(*runs: tuple[ExperimentSpec, dict[str, float]], **more: Any) -> tuple[Measured, ...]:
    return own_measurements(cast("Tracker", Runs(*runs, **more)))


def test_a_run_counts_with_the_tokens_that_it_had() -> None:
    # 922 tokens a row whatever the plan thought: 8 x 922 / 763 = 9.667 s a step were measured.
    point = as_it_ran(training_point(SPEC), SPEC, METRICS)
    assert (point.filling.tokens, point.filling.sequences) == (pytest.approx(8 * 922), 8.0)
    (one,) = found((SPEC, METRICS))
    assert one.ratio == pytest.approx(8 * 922 / 763 / modelled(point).step_s)
    assert (one.parameters, one.work.trained) == (point.model.parameters, "lora")


def test_packed_sequences_follow_from_the_efficiency() -> None:
    packed = replace(SPEC, packing=PackingSpec(mode="step"))
    metrics = {**METRICS, "train/packing_efficiency": 8 * 922 / (3 * 3072)}
    assert as_it_ran(training_point(packed), packed, metrics).filling.sequences == 3.0
    on_two = replace(packed, mesh=MeshSpec(fsdp=2, tp=2), batch=BatchSpec(8, 1))
    assert as_it_ran(training_point(on_two), on_two, metrics).filling.sequences == 4.0


def test_a_run_counts_with_the_width_that_it_computed() -> None:
    # A run that padded to the limit, and one that computed 1,000 tokens of each row: another factor would come of the same rate.
    padded = as_it_ran(training_point(SPEC), SPEC, {**METRICS, "train/packing_efficiency": 922 / 3072})
    narrow = as_it_ran(training_point(SPEC), SPEC, {**METRICS, "train/packing_efficiency": 922 / 1000})
    assert (padded.filling.widths, narrow.filling.widths) == (((3072, 1.0),), ((1000, 1.0),))
    assert modelled(padded).step_s > 2.5 * modelled(narrow).step_s


def measured(*ratios: float, point: TrainingPoint | None = None) -> list[Measured]:
    point = point or training_point(SPEC)
    return [Measured(f"run{index}", work_of(point), point.model.parameters, ratio) for index, ratio in enumerate(ratios)]


def test_the_median_and_what_it_rests_on() -> None:
    point = training_point(SPEC)
    one = calibration_of(point, measured(1.4, 1.0, 1.1))
    assert one is not None
    assert (one.factor, one.low, one.high, one.runs) == (1.1, 1.0, 1.4, ("run0", "run1", "run2"))
    assert one.smallest == one.largest == point.model.parameters
    assert "times 1.10, the median of 3 own runs (1.00 to 1.40; models of 30.7B parameters; runs run0, run1, run2)" in one.text


def test_two_runs_are_too_few() -> None:
    assert calibration_of(training_point(SPEC), measured(2.8, 2.8)) is None


def test_a_small_model_says_nothing_of_a_large_one_and_neither_does_other_work() -> None:
    point = training_point(SPEC)
    small = replace(SPEC, model=ModelSpec(family="llama", dtype="bfloat16"), data=replace(SPEC.data, max_length=512))
    assert calibration_of(point, measured(2.8, 2.8, 2.8, point=training_point(small))) is None
    near = measured(2.8, 2.8, 2.8)
    for other in ({"trained": "full"}, {"chip": "v6e"}, {"backend": "torch"}, {"dtype": "float32"}, {"quantization": "nf4"}):
        assert calibration_of(point, [replace(one, work=replace(one.work, **other)) for one in near]) is None


def test_what_no_error_of_the_model_explains_is_left_out_and_counted() -> None:
    one = calibration_of(training_point(SPEC), measured(1218.0, 1.0, 1.2, 0.01, 1.1))
    assert one is not None
    assert (one.factor, len(one.runs), one.left_out) == (1.1, 3, 2)
    assert calibration_of(training_point(SPEC), measured(1218.0, 1218.0, 1218.0, 1.0)) is None


@pytest.mark.parametrize("mark", [{"tags": {"crossmesh.emulated": "true"}}, {"emulated": True}])
def test_an_emulated_run_measured_no_chip(mark: dict[str, Any]) -> None:
    assert found((SPEC, METRICS), **mark) == ()


def test_runs_on_cpus_unfinished_ones_and_unreadable_ones_do_not_count() -> None:
    on_cpu = replace(SPEC, hardware=HardwareSpec("cpu"), mesh=MeshSpec())
    gone = replace(SPEC, model=replace(SPEC.model, weights="hf://nobody/nothing"))
    assert found((on_cpu, METRICS), (SPEC, {"train/tokens": 1.0}), (gone, METRICS)) == ()


def test_the_factor_multiplies_time_alone_and_the_compilers_bound_stays() -> None:
    point = training_point(SPEC)
    own, twice = figures(point), figures(point, factor=2.0)
    assert (twice.step_s, twice.factor) == (2 * own.step_s, 2.0)
    assert (twice.hbm_bytes, twice.phases, twice.step_source) == (own.hbm_bytes, own.phases, "modelled")
