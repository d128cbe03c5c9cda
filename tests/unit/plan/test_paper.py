"""The paper's arithmetic from the catalogue: what agrees, what does not, and the forecast for its run."""

from datetime import date

import pytest

from crossmesh.plan.paper import paper_lines
from crossmesh.plan.paper_runs import PaperRun, paper_runs


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


@pytest.fixture(scope="module")
def runs() -> dict[str, PaperRun]:
    return {run.label: run for run in paper_runs(date(2026, 6, 1))}


def test_as_they_ran_it_fits_and_lies_between_bound_and_measurement(runs: dict[str, PaperRun]) -> None:
    run = runs["tpu_v5p_8, as they ran it"]
    assert run.planned.fits
    assert run.planned.figures.bound_s / 8 < 0.605 < run.sample_s < 1.21  # 0.605: XLA's static estimate
    assert run.calibration == pytest.approx(1.21 / run.sample_s)
    assert run.tokens_per_s == pytest.approx(763, rel=0.01)
    assert run.usd == pytest.approx(56.11, rel=0.01)


def test_packing_is_forecast_at_five_times_their_rate_for_under_twelve_dollars(runs: dict[str, PaperRun]) -> None:
    run = runs["tpu_v5p_8, packing=stream"]
    assert run.planned.fits
    assert run.speedup > 5
    assert run.usd < 12
    assert runs["tpu_v5p_8, packing=step"].speedup < run.speedup


def test_the_model_is_near_what_others_published_for_h100(runs: dict[str, PaperRun]) -> None:
    run = runs["gpu_2xh100, packing=stream, remat=layer, at published rates"]
    assert run.calibration == pytest.approx(1.0, abs=0.45)
    assert run.tokens_per_s == pytest.approx(2 * 2250)
