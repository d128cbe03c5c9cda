"""Both backends from one start on the same batches: the same losses, the same adapter. Float32, tiny models."""

from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from arrays import frobenius
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import BackendSpec, LoraSpec, OptimSpec
from crossmesh.models.lora_masks import kept, module_keys, module_words, scale, step_key, threshold, token_words
from crossmesh.models.torch.lora_masks_torch import LoraDropout, LoraMasks
from crossmesh.train.backend import TrainingSetup
from crossmesh.train.jax_backend import JaxBackend
from crossmesh.train.torch_backend import TorchBackend
from crossmesh.verify.exchange.check import tiny_models
from random_rows import packed, rows, unpacked

pytestmark = pytest.mark.integration
STEPS = 12
MODELS = pytest.mark.parametrize(
    "probed_model",
    [
        "llama",
        "gemma4",
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in sorted(name.removeprefix("tiny_") for name in tiny_models())
            if name not in ("llama", "gemma4")
        ),
    ],
    indirect=True,
)

LIGHT = pytest.mark.parametrize("probed_model", ["llama", pytest.param("gemma4", marks=pytest.mark.full)], indirect=True)


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


@LIGHT
def test_dropout_drops_the_same_on_both_backends_and_in_every_split(probed_model: Path, jax_cache: Path) -> None:
    lora = LoraSpec(rank=4, alpha=8.0, dropout=0.3, seed=3)
    optim = OptimSpec(steps=STEPS, learning_rate=5e-3, warmup_steps=2)
    setup = TrainingSetup.of(ExperimentSpec(lora=lora, optim=optim, backend=BackendSpec(attention="plain")), probed_model, jax_cache)

    def losses(backend: TorchBackend | JaxBackend, micro: int, remat: str = "none") -> list[float]:
        backend.init(replace(setup, remat=remat, accumulation=8 // micro if micro else 1))
        made = [rows(8, seed) for seed in range(4)]
        batches = [unpacked(step, micro, 48) if micro else packed(step, 320) for step in made]
        return [backend.step(batch).loss for batch in batches] + [backend.evaluate(batches[0]).loss]

    expected = losses(TorchBackend(), 8)
    assert losses(TorchBackend(), 2) == pytest.approx(expected, rel=1e-5)
    assert losses(TorchBackend(), 0) == pytest.approx(expected, rel=1e-5)  # all rows in one sequence
    assert losses(TorchBackend(), 8, "layer") == losses(TorchBackend(), 8, "dots") == expected
    assert losses(JaxBackend(), 2, "layer") == pytest.approx(expected, rel=1e-5)
    assert losses(JaxBackend(), 0) == pytest.approx(expected, rel=1e-5)


def test_both_frameworks_compute_the_same_bits() -> None:
    random = np.random.default_rng(0)
    row_keys, positions = random.integers(0, 1 << 32, 300, np.uint32), random.integers(0, 9999, 300, np.int32)
    masks = LoraMasks(["a", "b"], seed=5, on_cpu=True)
    masks.block = 1000  # fewer rows at once than there are
    for first, count in ((0, 577), (0, 578), (101, 200), (64, 64)):
        given = torch.ones(300, count)
        ours = LoraDropout(masks, "b", 0.3, 0, first + count if not first else 900)
        theirs = LoraDropout(masks, "b", 0.3, first, count)
        masks.start(7, row_keys, positions, "cpu")
        tokens = token_words(jnp.asarray(row_keys), jnp.asarray(positions).astype(jnp.uint32))
        one, other = module_words(tokens, jnp.asarray(module_keys(["b"])[0] ^ step_key(5, 7)))
        features = jnp.arange(first, first + count, dtype=jnp.uint32)
        expected = np.asarray(kept(one[:, None], other[:, None], features, threshold(0.3)))
        assert ours.count >= first + count
        assert np.array_equal(theirs(given).numpy() != 0, expected)
        assert np.array_equal((ours(torch.ones(300, ours.count)).numpy() != 0)[:, first : first + count], expected)
        assert set(np.unique(theirs(given).numpy())) == {np.float32(0), np.float32(scale(0.3))}
        assert torch.equal(theirs.eval()(given), given)


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
