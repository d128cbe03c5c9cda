"""What the comparison of two finished runs lets pass and what it does not; the runs are made up."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crossmesh.adapters.initial import initial_lora
from crossmesh.adapters.peft_format import write_adapter
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import BackendSpec, HardwareSpec, LoraSpec, ModelSpec
from crossmesh.console import Console
from crossmesh.errors import InputError
from crossmesh.models.architecture import Architecture
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.lora import lora_modules
from crossmesh.models.targets import expand_targets, hf_module_names
from crossmesh.models.weights.random_weights import architecture_config
from crossmesh.train.events import StepEvent
from crossmesh.train.launch import TrainResult
from crossmesh.verify.checks import PLACEHOLDER_MODEL
from crossmesh.verify.parity.check import cases, compare_backends, on_backend, verify_training_parity

SPEC = ExperimentSpec(model=ModelSpec("gemma4", "random://tiny_gemma4@0"), lora=LoraSpec(rank=2, targets=("q", "k", "v")))


@pytest.fixture(scope="module")
def architecture() -> Architecture:
    return parse_architecture(architecture_config("tiny_gemma4"), "test")


def run(folder: Path, architecture: Architecture, losses=(3.0, 2.0), targets=("q", "k", "v"), noise=0.0, still=False) -> TrainResult:
    expanded = expand_targets(architecture, targets)
    arrays = initial_lora(lora_modules(LoraSpec(rank=2, targets=targets), architecture), 0)
    if not still:
        random = np.random.default_rng(0)
        arrays = {name: array + 0.05 * random.standard_normal(array.shape).astype(np.float32) for name, array in arrays.items()}
    arrays = {name: array * np.float32(1 + noise) for name, array in arrays.items()}
    write_adapter(folder, arrays, rank=2, alpha=32.0, dropout=0.0, base_model="b", modules=hf_module_names(expanded))
    history = tuple(
        StepEvent(
            step=step,
            steps=2,
            loss=loss,
            grad_norm=1.0,
            learning_rate=0.1,
            loss_tokens=1,
            real_tokens=1,
            padded_tokens=2,
            seconds=1.0,
            first=step == 1,
        )
        for step, loss in enumerate(losses, 1)
    )
    return TrainResult(folder, "digest", "data", history)


def judged(tmp_path, architecture, spec=SPEC, **jax):
    runs = {
        "torch": run(tmp_path / "torch", architecture, still=jax.get("still", False)),
        "jax": run(tmp_path / "jax", architecture, **jax),
    }
    limits, figures = compare_backends(spec, architecture, runs)
    return {limit.name for limit in limits if not limit.passed}, {limit.name: limit for limit in limits}, figures


def test_equal_runs_pass(tmp_path, architecture):
    broken, limits, figures = judged(tmp_path, architecture)
    assert broken == set()
    assert set(limits) == {"different_modules", "moved", "loss_difference", "adapter_difference"}
    assert figures["modules"]["jax"] == {"global k": 1, "global q": 1, "sliding k": 5, "sliding q": 5, "sliding v": 5}
    assert figures["module_difference"] == {}


def test_a_loss_that_is_off_at_one_step_fails_and_is_named(tmp_path, architecture):
    broken, _, figures = judged(tmp_path, architecture, losses=(3.0, 2.003))
    assert broken == {"loss_difference"}
    assert figures["worst_step"] == 2


def test_an_adapter_that_is_off_by_two_percent_fails(tmp_path, architecture):
    broken, limits, _ = judged(tmp_path, architecture, noise=0.02)
    assert broken == {"adapter_difference"}
    assert limits["adapter_difference"].worst == pytest.approx(0.02, rel=1e-3)


def test_a_missing_projection_fails_and_is_named_by_its_layer_kind(tmp_path, architecture):
    """What the seed's recipe did: no key adapter in the global layers, or here in any."""
    broken, limits, figures = judged(tmp_path, architecture, targets=("q", "v"))
    assert {"different_modules", "adapter_difference"} <= broken
    assert limits["different_modules"].worst == 6
    assert {kind: len(names) for kind, names in figures["module_difference"].items()} == {"sliding k": 5, "global k": 1}


def test_two_runs_that_learnt_nothing_prove_nothing(tmp_path, architecture):
    broken, _, _ = judged(tmp_path, architecture, still=True)
    assert broken == {"moved"}


def test_in_bfloat16_the_drift_is_reported_and_the_modules_are_judged(tmp_path, architecture):
    spec = replace(SPEC, model=replace(SPEC.model, dtype="bfloat16"))
    broken, limits, figures = judged(tmp_path, architecture, spec, losses=(3.3, 2.0), noise=0.1)
    assert broken == set()
    assert set(limits) == {"different_modules", "moved"}
    assert max(figures["loss_difference"]) == pytest.approx(0.1)


def test_without_a_model_one_of_two_has_dropout_and_the_users_own_is_kept():
    unsaid = replace(SPEC, model=PLACEHOLDER_MODEL)
    assert {name: case.lora.dropout for name, case in cases(unsaid).items()} == {"llama": 0.0, "gemma4": 0.05}
    asked = replace(unsaid, lora=LoraSpec(dropout=0.3))
    assert {name: case.lora.dropout for name, case in cases(asked).items()} == {"llama": 0.3, "gemma4": 0.3}
    own = replace(asked, model=ModelSpec("qwen3", "random://tiny_qwen3@0"))
    assert cases(own) == {"qwen3": own}


def test_each_backend_gets_a_kernel_that_it_has():
    spec = replace(SPEC, backend=BackendSpec("torch", "layer", "sdpa"))
    assert on_backend(spec, "torch").backend == spec.backend
    assert on_backend(spec, "jax").backend == BackendSpec("jax", "layer", "auto")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lora": LoraSpec(rank=0)}, r"lora\.rank=0 .*compares adapters"),
        ({"hardware": HardwareSpec("tpu_v6e_8")}, "does not train on hardware"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_starts(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        verify_training_parity(replace(SPEC, **change), tmp_path / "check", Console())
    assert not (tmp_path / "check").exists()
