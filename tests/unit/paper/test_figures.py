"""The paper's arithmetic from the catalogue: what agrees, what does not, and the forecast for its run."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from crossmesh.config.compose import compose_spec
from crossmesh.config.planning import PlanSpec
from crossmesh.paper.figures import paper_lines, unsold_prices
from crossmesh.paper.planned_runs import PaperRun, paper_runs
from crossmesh.plan.planner import Planner
from crossmesh.plan.point import training_point
from crossmesh.plan.training.calibration import Measured, work_of


def test_what_follows_from_the_catalogue_agrees_and_the_rest_is_named() -> None:
    lines = {line.what: line for line in paper_lines()}
    assert lines["tpu_v5p_8: training cost"].ours == pytest.approx(3.34 * 16.80)
    assert lines["gpu_2xh100: USD per 1M tokens trained"].ours == pytest.approx(12.64, abs=0.005)
    assert lines["tpu_v5p_8: USD per 1M tokens trained"].ours == pytest.approx(6.12, abs=0.005)
    assert lines["tpu_v5p_8 + 24 h of tpu_v6e_8"].ours == pytest.approx(572.59, abs=0.01)
    assert lines["tpu_v6e_8: USD per 1M output tokens, 4096/512"].ours == pytest.approx(21.52 / 3600 / 1206 * 1e6)
    assert lines["TPU cheaper for a day of serving, times"].ours == pytest.approx(650.11 / 572.59, abs=1e-3)
    assert lines["pass@1 gap in standard errors of a difference"].theirs == pytest.approx(1.06, abs=0.01)
    assert [line.what for line in lines.values() if not line.consistent] == [
        "gpu_2xh100: real tokens/s",
        "TPU cheaper for a day of serving, times",
        "chips of v5p-16",
        "sequence length",
        "pass@1 gap in standard errors of a difference",
        "tpu_v6e_8: first token of a 15360-token prompt",
        "gpu_2xh100: first token of a 15360-token prompt",
    ]
    assert [line.what for line in lines.values() if line.impossible] == [
        "tpu_v6e_8: first token of a 15360-token prompt",
        "gpu_2xh100: first token of a 15360-token prompt",
    ]


BARE = Planner(PlanSpec(), date(2026, 6, 1))
SHIPPED = compose_spec(Path(__file__).resolve().parents[3] / "conf", "experiment=gemma4_31b_codev_v5p8_tp4")


@pytest.fixture(scope="module")
def runs() -> dict[str, PaperRun]:
    return {run.label: run for run in paper_runs(BARE)}


def calibrated() -> Planner:
    point = training_point(SHIPPED)
    measured = [Measured(f"run{index}", work_of(point), point.model.parameters, 1.25) for index in range(3)]
    return replace(BARE, measured=measured)


@pytest.mark.parametrize(("planner", "factor"), [(BARE, 1.0), (calibrated(), 1.25)])
def test_both_reports_give_one_figure_for_the_same_run(planner: Planner, factor: float) -> None:
    spec = replace(SHIPPED, plan=replace(SHIPPED.plan, price_max_age_days=10**6))
    plan = replace(planner, plan=spec.plan).planned(training_point(spec))
    recomputed = next(run.planned for run in paper_runs(planner) if run.label == "tpu_v5p_8, packing=step")
    names = ("tokens_per_s", "usd", "hours", "usd_per_million_tokens", "figures", "calibration")
    assert {name: getattr(recomputed, name) for name in names} == {name: getattr(plan, name) for name in names}
    assert plan.figures.factor == factor
    assert plan.tokens_per_s == pytest.approx(5172 / factor, abs=1)
    assert plan.usd == pytest.approx(8.20 * factor, abs=0.01)


def test_the_papers_own_ratio_multiplies_nothing(runs: dict[str, PaperRun]) -> None:
    run = runs["tpu_v5p_8, as they ran it"]
    assert run.planned.fits
    assert run.planned.figures.bound_s / 8 < 0.605 < run.sample_s < 1.21  # 0.605: XLA's static estimate
    assert run.sample_s == pytest.approx(run.planned.figures.step_s / 8)
    assert run.ratio == pytest.approx(1.21 / run.sample_s)
    assert run.planned.figures.factor == 1.0
    assert [one.label for one in runs.values() if one.ratio] == [
        "tpu_v5p_8, as they ran it",
        "gpu_2xh100, as they ran it",
        "gpu_2xh100, packing=stream, remat=layer",
    ]


def test_every_way_trains_on_all_rows(runs: dict[str, PaperRun]) -> None:
    steps = {label: run.planned.point.steps for label, run in runs.items()}
    assert steps["tpu_v5p_8, as they ran it"] == steps["tpu_v5p_8, packing=step"] == 1250
    filling = runs["tpu_v5p_8, packing=stream"].planned.point.filling
    held = steps["tpu_v5p_8, packing=stream"] * filling.tokens / filling.row_tokens
    assert 10_000 <= held < 10_000 + filling.tokens / filling.row_tokens
    for run in runs.values():
        assert run.planned.usd == pytest.approx(run.sample_s * 10_000 / 3600 * run.planned.price.usd_per_hour)


def test_packing_is_planned_at_over_six_times_the_rate_of_padding(runs: dict[str, PaperRun]) -> None:
    run, padded = runs["tpu_v5p_8, packing=stream"], runs["tpu_v5p_8, as they ran it"]
    assert run.planned.fits
    assert run.speedup == pytest.approx(run.planned.tokens_per_s / padded.planned.tokens_per_s)
    assert run.speedup > 6
    assert 4 < runs["tpu_v5p_8, packing=step"].speedup < run.speedup


def test_the_model_is_near_what_others_published_for_h100(runs: dict[str, PaperRun]) -> None:
    run = runs["gpu_2xh100, packing=stream, remat=layer"]
    assert run.ratio == pytest.approx(run.planned.tokens_per_s / (2 * 2250))
    assert run.ratio == pytest.approx(1.0, abs=0.45)


def test_prices_are_those_that_the_plan_asks_for_and_a_budget_hides_nothing() -> None:
    planner = replace(BARE, plan=PlanSpec(price="spot", max_usd=1.0))
    run = next(run for run in paper_runs(planner) if run.label == "tpu_v5p_8, packing=step")
    assert run.planned.price == run.planned.point.slice.price("spot", "")
    assert run.planned.fits


def test_a_price_at_which_nothing_is_sold_is_said() -> None:
    assert list(unsold_prices()) == ["gpu_2xh100"]
    assert "Google Cloud sells a3-highgpu-2g as spot or flex_start" in unsold_prices()["gpu_2xh100"]
