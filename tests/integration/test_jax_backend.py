"""The JAX backend by itself: masks, accumulation, state, precision, and the work-arounds that it stands on.

That it computes what the torch backend computes is in `test_parity.py`.
"""

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import qwix
from flax import nnx
from tunix.models.gemma4 import model as gemma4
from tunix.models.llama3 import model as llama3

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import BackendSpec, LoraSpec, ModelSpec, OptimSpec
from crossmesh.data.batches import PackedBatch, Row
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.hardware.mesh import MeshShape
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.jax import tunix_jax
from crossmesh.models.jax.layers_jax import ModelConfig
from crossmesh.objectives.sft import Sft
from crossmesh.train.backend import TrainingSetup
from crossmesh.train.jax_backend import JaxBackend
from crossmesh.train.loss_jax import LossHead, token_sums
from crossmesh.train.schedule import learning_rate
from random_rows import ragged, rows, unpacked

pytestmark = pytest.mark.integration
LIGHT = pytest.mark.parametrize("probed_model", ["llama", pytest.param("gemma4", marks=pytest.mark.full)], indirect=True)
"""The family that compiles sooner in `make test`, both in `make test-full`."""
LENGTH = 48


def setup_of(folder: Path, cache: Path, dtype: str = "float32", **lora: Any) -> TrainingSetup:
    optim = OptimSpec(steps=20, learning_rate=1e-2, weight_decay=0.01)
    return TrainingSetup.of(
        ExperimentSpec(
            model=ModelSpec(dtype=dtype), lora=LoraSpec(**{"rank": 4, "alpha": 8.0, **lora}), optim=optim, backend=BackendSpec("jax")
        ),
        folder,
        cache,
    )


def started(folder: Path, cache: Path, **settings: Any) -> JaxBackend:
    backend = JaxBackend()
    backend.init(setup_of(folder, cache, **settings))
    return backend


def batch_of(made: list[Row], micro: int) -> PackedBatch:
    return unpacked(made, micro, LENGTH)


@pytest.fixture(scope="module")
def kept(probed_model: Path, jax_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[JaxBackend, Path]:
    """One backend for a family, and its state before the first step."""
    backend, state = started(probed_model, jax_cache), tmp_path_factory.mktemp("start")
    backend.save_state(state)()
    return backend, state


@pytest.fixture
def backend(kept: tuple[JaxBackend, Path]) -> JaxBackend:
    """The family's backend, as it was before its first step."""
    kept[0].load_state(kept[1])
    return kept[0]


def test_one_program_serves_every_batch_and_a_loaded_state(
    backend: JaxBackend, probed_model: Path, jax_cache: Path, tmp_path: Path
) -> None:
    before = jax.tree.map(np.asarray, backend._frozen)
    batch = batch_of(rows(4), 4)
    metrics = [backend.step(batch) for _ in range(6)]
    backend.step(batch_of(rows(4, seed=1), 4))
    backend.save_state(tmp_path)()
    backend.load_state(tmp_path)
    backend.step(batch)
    assert backend._take_step._cache_size() == 1
    assert any(path.name.startswith("jit_train_step") for path in jax_cache.iterdir()), "the compiled step is not in the cache folder"
    assert [m.learning_rate for m in metrics] == [learning_rate(step, setup_of(probed_model, jax_cache).optim) for step in range(6)]
    assert metrics[-1].loss < 0.8 * metrics[0].loss
    assert all(jax.tree.leaves(jax.tree.map(lambda old, new: bool((old == np.asarray(new)).all()), before, backend._frozen)))


@LIGHT
def test_a_step_of_several_widths_learns_what_a_padded_one_does_and_compiles_a_program_a_width(probed_model: Path, jax_cache: Path) -> None:
    """Whatever widths meet in a step: also when all of its micro-batches have the same."""
    backends = []
    for _ in range(2):
        backend = JaxBackend()
        backend.init(replace(setup_of(probed_model, jax_cache, dropout=0.1), accumulation=4, optim=OptimSpec(steps=20, clip_norm=0.5)))
        backends.append(backend)
    padded, bucketed = backends
    made = [*(rows(4, seed) for seed in range(3)), [one for one in rows(40, 9) if len(one.tokens) <= 24][:4]]
    for step in made:
        theirs, ours = padded.step(unpacked(step, 1, LENGTH)), bucketed.step(ragged(step, 1, 24))
        assert (ours.loss, ours.grad_norm) == pytest.approx((theirs.loss, theirs.grad_norm), rel=1e-4)
    assert {width for step in made for width in ragged(step, 1, 24).widths} == {24, 48}
    assert set(ragged(made[-1], 1, 24).widths) == {24}
    assert bucketed._parts.accumulate._cache_size() == 2
    assert bucketed._parts.begin._cache_size() == bucketed._parts.finish._cache_size() == 1
    assert bucketed._take_step._cache_size() == 0
    expected, trained = padded.export(), bucketed.export()
    assert all(np.abs(expected[name] - trained[name]).max() < 1e-4 for name in expected)
    assert bucketed.evaluate(ragged(made[0], 1, 24)).loss == pytest.approx(padded.evaluate(unpacked(made[0], 1, LENGTH)).loss, rel=1e-4)


@LIGHT
def test_a_resumed_run_is_bit_equal_also_with_dropout(probed_model: Path, jax_cache: Path, tmp_path: Path) -> None:
    batches = [batch_of(rows(4, seed), 4) for seed in range(3)]
    whole, resumed = (started(probed_model, jax_cache, dropout=0.1) for _ in range(2))
    whole.step(batches[0])
    whole.save_state(tmp_path)()
    resumed.load_state(tmp_path)
    assert [resumed.step(batch) for batch in batches[1:]] == [whole.step(batch) for batch in batches[1:]]
    expected, actual = whole.export(), resumed.export()
    assert all(np.array_equal(expected[name], actual[name]) for name in expected)
    # Dropout draws anew each step, and not at all when a loss is only measured.
    measured = resumed.evaluate(batches[0]).loss
    assert measured == resumed.evaluate(batches[0]).loss
    assert measured != pytest.approx(resumed.step(batches[0]).loss, rel=1e-4)


@LIGHT
def test_the_base_in_bfloat16_keeps_adapter_and_optimizer_in_float32(backend: JaxBackend, probed_model: Path, jax_cache: Path) -> None:
    narrow, batch = started(probed_model, jax_cache, dtype="bfloat16"), batch_of(rows(4), 4)
    reference = backend.step(batch).loss
    assert narrow.step(batch).loss == pytest.approx(reference, rel=0.02)
    assert {str(array.dtype) for array in jax.tree.leaves(narrow._frozen)} == {"bfloat16"}
    assert {str(array.dtype) for array in jax.tree.leaves((narrow._trained, narrow._moments))} == {"float32", "int32"}


@LIGHT
def test_the_state_of_another_adapter_and_a_batch_without_loss_are_refused(
    backend: JaxBackend, probed_model: Path, jax_cache: Path, tmp_path: Path
) -> None:
    started(probed_model, jax_cache, targets=("q",)).save_state(tmp_path)()
    with pytest.raises(InputError, match="state of another adapter"):
        backend.load_state(tmp_path)
    silent = [replace(row, loss_mask=np.zeros_like(row.loss_mask)) for row in rows(2)]
    with pytest.raises(CrossmeshError, match="no token that carries loss"):
        backend.step(batch_of(silent, 2))


def test_no_weight_of_the_model_is_left_unread(probed_model: Path) -> None:
    structure = tunix_jax.build(read_architecture(probed_model), ModelConfig())
    _, base = tunix_jax.load_weights(structure, probed_model, tunix_jax.device_mesh(MeshShape(1, 1, 1)))
    assert {path for path, _ in base.flat_state()} == {path for path, _ in structure.frozen.flat_state()}


def test_tunix_llama_still_ignores_rope_theta() -> None:
    """The reason for `DenseAttention.theta`. When this fails, Tunix computes theta itself: remove the work-around."""
    assert "rope_theta" in inspect.signature(llama3.apply_rope).parameters
    assert "rope_theta" not in inspect.getsource(llama3.Attention)


def test_qwix_still_shares_one_a_between_fused_k_and_v() -> None:
    """The reason for `KeyValue`. When this fails, look whether Qwix now trains PEFT's parameters on Tunix's own `kv_einsum`."""
    config = gemma4.ModelConfig(
        num_layers=1, num_embed=16, embed_dim=12, hidden_dim=8, num_heads=2, head_dim=4, num_kv_heads=2, sliding_window_size=4,
        attention_pattern=(gemma4.AttentionType.LOCAL_SLIDING,),
    )  # fmt: skip
    tokens, mask = jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2, 2), jnp.bool_)
    provider = qwix.LoraProvider(module_path=".*kv_einsum", rank=3, alpha=3.0)
    adapted = nnx.eval_shape(
        lambda: qwix.apply_lora_to_model(
            gemma4.Gemma4(config, rngs=nnx.Rngs(0)), provider, tokens, tokens, None, mask, rngs=nnx.Rngs(params=0, dropout=0)
        )
    )
    shapes = {path[-1]: variable.get_value().shape for path, variable in nnx.state(adapted, nnx.LoRAParam).flat_state()}
    assert shapes == {"w_lora_a": (12, 3), "w_lora_b": (3, 2, 2, 4)}


@pytest.mark.parametrize("cap", [0.0, 5.0])
def test_the_loss_head_is_the_plain_loss_and_its_gradients(cap: float) -> None:
    random = np.random.default_rng(0)
    hidden = jnp.asarray(random.normal(size=(2, 10, 6)), jnp.float32)
    weight = jnp.asarray(random.normal(size=(11, 6)) * 3, jnp.float32)
    targets = jnp.asarray(random.integers(0, 11, (2, 10)))
    head = LossHead(tunix_jax.device_mesh(MeshShape(1, 1, 1)), cap, 8, train_weight=True, token_losses=Sft().token_losses)

    def plain(hidden: Any, weight: Any, mask: Any) -> Any:
        logits = hidden @ weight.T
        logits = cap * jnp.tanh(logits / cap) if cap else logits
        return -jnp.sum(jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0] * mask)

    def ours(hidden: Any, weight: Any, mask: Any) -> Any:
        return token_sums(head, hidden, weight, targets, mask)["loss"]

    reference = jax.jit(jax.value_and_grad(plain, (0, 1)))
    tried, measured = jax.jit(jax.value_and_grad(lambda *arrays: 3 * ours(*arrays), (0, 1))), jax.jit(ours)
    for carrying in (0, 1, 7, 8, 20):  # in blocks of 8
        mask = jnp.asarray(random.permutation(20) < carrying).reshape(2, 10)
        (expected, expected_gradients), (value, gradients) = reference(hidden, weight, mask), tried(hidden, weight, mask)
        assert float(value) == pytest.approx(3 * float(expected), rel=1e-5, abs=1e-6)
        assert float(measured(hidden, weight, mask)) == pytest.approx(float(expected), rel=1e-5, abs=1e-6)
        for gradient, right in zip(gradients, expected_gradients, strict=True):
            np.testing.assert_allclose(gradient, 3 * right, rtol=1e-4, atol=1e-5)
