"""Both backends from one start on the same batches: the same losses, the same adapter. Float32, tiny models."""

from pathlib import Path

import numpy as np
import pytest

from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.spec.training import BackendSpec, LoraSpec, OptimSpec
from crossmesh.train.backend import TrainingSetup
from crossmesh.train.jax_backend import JaxBackend
from crossmesh.train.torch_backend import TorchBackend
from random_rows import packed, rows, unpacked

pytestmark = pytest.mark.integration
STEPS = 12
MODELS = pytest.mark.parametrize(
    "probed_model",
    [
        "llama",
        "gemma4",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("gemma4_moe", "gemma4_e2b", "gemma3", "qwen2", "qwen3")),
    ],
    indirect=True,
)


def frobenius(difference: dict[str, np.ndarray]) -> float:
    return float(np.sqrt(sum(np.square(array, dtype=np.float64).sum() for array in difference.values())))


@MODELS
def test_torch_and_jax_take_the_same_steps(probed_model: Path, jax_cache: Path) -> None:
    optim = OptimSpec(steps=STEPS, learning_rate=5e-3, warmup_steps=2, weight_decay=0.01, clip_norm=0.5)
    setup = TrainingSetup.of(
        ExperimentSpec(lora=LoraSpec(rank=4, alpha=8.0), optim=optim, backend=BackendSpec(attention="plain")), probed_model, jax_cache
    )
    torch, jax = TorchBackend(), JaxBackend()
    torch.init(setup)
    jax.init(setup)
    start, other = torch.export(), jax.export()
    assert start.keys() == other.keys()
    assert all(np.array_equal(start[name], other[name]) for name in start)

    batches = [unpacked(rows(4, seed), 2, 48) for seed in range(STEPS)]
    for batch in batches:
        ours, theirs = jax.step(batch), torch.step(batch)
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-2)
        assert (ours.learning_rate, ours.loss_tokens) == (theirs.learning_rate, theirs.loss_tokens)

    trained, other = torch.export(), jax.export()
    moved = frobenius({name: trained[name] - start[name] for name in trained})
    assert moved > 0.1 * frobenius(start)
    assert frobenius({name: trained[name] - other[name] for name in trained}) < 1e-2 * moved
    for name, array in trained.items():  # and no single matrix is off, a shared or swapped K and V say
        assert frobenius({name: array - other[name]}) < 5e-2 * frobenius({name: array - start[name]})

    long = packed(rows(3, STEPS), 128)
    assert jax.evaluate(long).loss == pytest.approx(torch.evaluate(long).loss, rel=1e-4)


@pytest.mark.full
@MODELS
def test_torch_and_jax_train_the_same_weights_without_an_adapter(probed_model: Path, jax_cache: Path) -> None:
    optim = OptimSpec(steps=4, learning_rate=1e-3, warmup_steps=0)
    setup = TrainingSetup.of(
        ExperimentSpec(lora=LoraSpec(rank=0), optim=optim, backend=BackendSpec(attention="plain")), probed_model, jax_cache
    )
    torch, jax = TorchBackend(), JaxBackend()
    torch.init(setup)
    jax.init(setup)
    start = torch.export()
    for seed in range(4):
        batch = unpacked(rows(4, seed), 2, 48)
        assert jax.step(batch).loss == pytest.approx(torch.step(batch).loss, rel=1e-4)

    trained, other = torch.export(), jax.export()
    assert trained.keys() == other.keys() == start.keys()
    for name, array in trained.items():
        moved = frobenius({name: array - start[name]})
        assert (moved == 0) == name.endswith("layer_scalar"), name  # a buffer of the Hugging Face module
        assert frobenius({name: array - other[name]}) <= 5e-2 * moved, name
