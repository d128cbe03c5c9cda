"""Every shipped experiment is planned, and the plans say what they should."""

from datetime import date
from pathlib import Path

import pytest

from crossmesh.config.compose import compose_spec
from crossmesh.plan.model import find_architecture
from crossmesh.plan.point import training_point
from crossmesh.plan.serving.forecast import serving_forecast
from crossmesh.plan.serving.point import serving_point
from crossmesh.plan.training.forecast import forecast

CONF = Path(__file__).resolve().parents[3] / "conf"
TODAY = date(2026, 6, 1)


def test_the_papers_run_on_tpu_fits_and_its_tp8_is_rejected() -> None:
    spec = compose_spec(CONF, "experiment=gemma4_31b_codev_v5p8_tp4")
    planned = forecast(training_point(spec), spec.plan, TODAY)
    assert planned.fits
    assert 0.3 < planned.hours < 3.34  # packed; padded it took 3.34 hours
    assert planned.usd == pytest.approx(16.80 * planned.hours)
    rejected = compose_spec(CONF, "experiment=gemma4_31b_codev_v5p8_tp4", "hardware=tpu_v6e_8", "mesh.fsdp=1", "mesh.tp=8")
    assert "layers.5.attn.k_einsum.w axis 0 has size 4, tp=8" in forecast(training_point(rejected), rejected.plan, TODAY).reasons[0]


def test_the_papers_run_on_gpus_needs_remat() -> None:
    spec = compose_spec(CONF, "experiment=gemma4_31b_codev_2xh100_fsdp", "backend.remat=none")
    planned = forecast(training_point(spec), spec.plan, TODAY)
    assert not planned.fits
    assert planned.nearest
    layers = compose_spec(CONF, "experiment=gemma4_31b_codev_2xh100_fsdp")
    assert forecast(training_point(layers), layers.plan, TODAY).fits


def test_the_papers_engine_is_accepted() -> None:
    spec = compose_spec(CONF, "experiment=gemma4_31b_serve_v6e8_tp8")
    planned = serving_forecast(serving_point(spec), spec.plan, TODAY)
    assert planned.fits
    assert planned.point.kv_width == 1
    assert planned.engine.batch == 256


@pytest.mark.parametrize("model", sorted(file.stem for file in (CONF / "model").glob("*.yaml")))
def test_every_shipped_model_is_planned_without_fetching_it(model: str, tmp_path: Path) -> None:
    spec = compose_spec(CONF, f"model={model}")
    assert find_architecture(spec.model, tmp_path).family == spec.model.family
