"""A training's summary is the same wherever a report is made: of stored runs, and at the end of a pipeline."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec
from crossmesh.config.training import HardwareSpec
from crossmesh.errors import InputError
from crossmesh.metrics import PLANNED_HBM, PLANNED_TOKENS_PER_S
from crossmesh.pipeline.evaluation import BASE, Evaluation
from crossmesh.pipeline.experiment import _variants
from crossmesh.report.charts.runs import rated_runs
from crossmesh.report.tables.measures import MEASURES
from crossmesh.report.trained_run import mean_power, training_summary
from crossmesh.report.variants import Results, RunRecord, TrainingSummary, Variant
from crossmesh.track.repeats import STEADY_MISSING
from crossmesh.track.tracked_run import TAG_HBM_SOURCE, TAG_STEP_SOURCE
from crossmesh.track.tracker import Tracker
from crossmesh.track.trackers import open_tracker

TOTALS = {
    "train/final_loss": 1.5,
    "train/tokens_per_s_steady": 4000.0,
    "train/padded_tokens_per_s_steady": 5000.0,
    "train/seconds": 3600.0,
    "train/tokens": 14_400_000.0,
    "train/loss_tokens": 900.0,
}
PLAN = {"plan/tokens_per_s": 5000.0, "plan/mfu": 0.5, "plan/hbm_bytes_per_chip": float(64 << 30)}
POWER = "system/node-1/gpu_{}_power_usage_watts"
LOSSES = ((1, 2.0), (2, 1.5))


@pytest.fixture
def spec(tmp_path: Path) -> ExperimentSpec:
    return ExperimentSpec(storage=StorageSpec(str(tmp_path)), hardware=HardwareSpec("tpu_v5p_8"))


def run_of(tracker: Tracker, metrics: dict[str, float]) -> str:
    run = tracker.start("jax", "train", tags={TAG_STEP_SOURCE: "compiled", TAG_HBM_SOURCE: "compiled"})
    for step, watts in ((1, 300.0), (2, 500.0)):
        tracker.metrics(run, {POWER.format(0): watts, POWER.format(1): 100.0}, step)
    tracker.metrics(run, {**metrics, "load/cpu_others": 0.0}, 2)
    tracker.finish(run)
    return run


def test_the_report_of_a_pipeline_has_utilization_energy_and_plan(spec: ExperimentSpec, tmp_path: Path) -> None:
    """They were those of stored runs only, and the pipeline said that the catalogue had no peak for a v5p."""
    tracker = open_tracker(spec.tracking, spec.storage)
    run = run_of(tracker, {**TOTALS, **PLAN})
    (tmp_path / "adapter_model.safetensors").write_bytes(b"1234")
    record = SimpleNamespace(contents={})
    result: Any = SimpleNamespace(losses=LOSSES, adapter_folder=tmp_path)
    trial: Any = SimpleNamespace(
        prepared=SimpleNamespace(science=record, system=record), folder=tmp_path, run_id=run, provenance={}, result=result
    )
    examined: Any = SimpleNamespace(splits=(), metrics={})
    evaluation = Evaluation(BASE, examined, {}, "base-run", skipped=True)
    _, variant = _variants(spec, {"jax": trial}, {BASE: evaluation, "jax": evaluation}, tracker)
    assert variant.training == TrainingSummary(
        losses=LOSSES,
        final_loss=1.5,
        tokens_per_s=4000.0,
        seconds=3600.0,
        tokens=14_400_000,
        loss_tokens=900,
        padded_tokens_per_s=5000.0,
        mfu=0.4,  # 0.5 at 5,000 tokens a second, of which 4,000 were reached.
        energy_wh=500.0,  # 400 W and 100 W in the mean, for an hour.
    )
    assert variant.planned == {PLANNED_TOKENS_PER_S.name: (5000.0, "compiled"), PLANNED_HBM.name: (64.0, "compiled")}
    assert variant.adapter_bytes == 4
    assert json.dumps(variant.load) == "[]"


def test_a_run_without_plan_or_meter_has_neither(spec: ExperimentSpec) -> None:
    tracker = open_tracker(spec.tracking, spec.storage)
    run_id = tracker.start("jax", "train")
    tracker.metrics(run_id, TOTALS, 2)
    tracker.finish(run_id)
    run = tracker.run(run_id)
    assert mean_power(tracker, [run]) == {}
    found = training_summary(run, (), None)
    assert (found.mfu, found.energy_wh) == (None, None)


def test_the_rate_of_a_run_that_never_had_all_its_slices_is_not_that_of_its_mesh(spec: ExperimentSpec) -> None:
    tracker = open_tracker(spec.tracking, spec.storage)
    run_id = tracker.start("jax", "train")
    tracker.metrics(run_id, {**TOTALS, **PLAN, STEADY_MISSING: 1.0, "train/rented_seconds": 1800.0}, 2)
    tracker.finish(run_id)
    found = training_summary(tracker.run(run_id), (), None)
    assert (found.tokens_per_s, found.padded_tokens_per_s, found.mfu) == (None, None, None)
    assert (found.seconds, found.rented_s) == (3600.0, 1800.0)
    shown = {one.key: one for one in MEASURES}
    variant = Variant("a", "jax", RunRecord("a"), (), found)
    assert shown["tokens_per_s"].of(variant, found) is None
    assert "all slices" in shown["tokens_per_s"].why
    assert rated_runs(Results("x", (variant,), "y")) == []


def test_a_run_that_is_no_finished_training_is_named(spec: ExperimentSpec) -> None:
    tracker = open_tracker(spec.tracking, spec.storage)
    run = tracker.run(tracker.start("jax", "train"))
    with pytest.raises(InputError, match=rf"{run.run_id} \(jax\) has no metric train/final_loss"):
        training_summary(run, (), None)
