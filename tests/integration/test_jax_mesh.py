"""The JAX backend on meshes of emulated devices: the same result in any split, state that moves between meshes, programs compiled once."""

import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import host_devices  # noqa: F401  # eight devices, before anything computes
from arrays import frobenius
from crossmesh.config.training import BackendSpec, LoraSpec, ModelSpec, OptimSpec
from crossmesh.data.batches import Row
from crossmesh.errors import InputError
from crossmesh.hardware.mesh import AXES, MeshShape
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.jax import tunix_jax
from crossmesh.models.jax.layers_jax import ModelConfig
from crossmesh.models.jax.tunix_jax import make_model
from crossmesh.models.lora_masks import step_key
from crossmesh.models.placement import weight_axes
from crossmesh.models.targets import all_weights
from crossmesh.train.backend import StepMetrics
from crossmesh.train.jax_backend import JaxBackend
from crossmesh.train.step_jax import summed_losses
from crossmesh.verify.exchange.check import tiny_models
from jax_runs import ROWS, batch_of, setup_of, started, steps
from random_rows import packed, ragged, rows, unpacked

pytestmark = pytest.mark.integration
SUPPORT = Path(__file__).resolve().parents[1] / "support"
TINY = {name.removeprefix("tiny_") for name in tiny_models()}
LIGHT = pytest.mark.parametrize("probed_model", ["llama", pytest.param("gemma4", marks=pytest.mark.full)], indirect=True)
"""The family that compiles sooner in `make test`, both in `make test-full`."""
VARIANTS = [pytest.param(name, marks=pytest.mark.full) for name in ("gemma4_moe", "gemma4_e2b")]
OTHERS = [pytest.param(name, marks=pytest.mark.full) for name in sorted(TINY - {"llama", "gemma4"})]
EIGHT = MeshShape(data=1, fsdp=2, tp=2, dcn=2)
MESHES = (
    MeshShape(1, 8, 1),
    MeshShape(8, 1, 1),
    MeshShape(1, 2, 4),
    MeshShape(2, 1, 4),
    MeshShape(2, 2, 2),
    MeshShape(1, 4, 2),
    MeshShape(4, 1, 2),
    MeshShape(1, 2, 1, dcn=4),
    MeshShape(2, 2, 1, dcn=2),
    MeshShape(1, 1, 2, dcn=4),
)


def difference(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> float:
    """Relative Frobenius distance."""
    return frobenius({name: ours[name] - theirs[name] for name in theirs}) / frobenius(theirs)


@pytest.mark.parametrize("probed_model", ["llama", "gemma4", *OTHERS], indirect=True)
def test_tunix_shards_as_the_table_says(probed_model: Path) -> None:
    architecture = read_architecture(probed_model)
    model = nnx.eval_shape(lambda: make_model(architecture, ModelConfig()))
    table = {weight.tunix_path: weight_axes(weight) for weight in all_weights(architecture)}
    for path, variable in nnx.state(model).flat_state():
        said = variable.get_metadata().get("out_sharding") or (None,) * len(variable.get_value().shape)
        assert table[path] == tuple(said), path


@pytest.mark.parametrize(
    "probed_model", ["llama", *(pytest.param(name, marks=pytest.mark.full) for name in ("gemma4", "gemma4_moe"))], indirect=True
)
def test_a_step_is_the_same_in_any_split_and_state_moves_between_meshes(probed_model: Path, jax_cache: Path, tmp_path: Path) -> None:
    lora = LoraSpec(rank=4, alpha=8.0, dropout=0.3)
    one = started(setup_of(probed_model, jax_cache, lora=lora))
    eight = started(setup_of(probed_model, jax_cache, EIGHT, micro=4, lora=lora))
    whole, split = steps(one, range(20)), steps(eight, range(20), micro=4)
    assert [step.loss for step in split] == pytest.approx([step.loss for step in whole], rel=1e-5)
    trained = eight.export()
    assert difference(trained, one.export()) < 1e-3
    places = {str(variable.get_value().sharding.spec) for _, variable in eight._trained.flat_state()}
    assert any("fsdp" in place for place in places)
    assert any("tp" in place for place in places)

    # 8 devices -> 1 -> 4, bit for bit.
    for folder in (first := tmp_path / "first", second := tmp_path / "second"):
        folder.mkdir()
    saving = eight.save_state(first)
    following = eight.step(batch_of(0, 4))
    saving()
    one.load_state(first)
    assert all(np.array_equal(array, trained[name]) for name, array in one.export().items())
    one.save_state(second)()
    four = started(setup_of(probed_model, jax_cache, MeshShape(data=2, fsdp=1, tp=2), micro=2, lora=lora))
    four.load_state(second)
    assert all(np.array_equal(array, trained[name]) for name, array in four.export().items())
    assert all(
        jax.tree.leaves(
            jax.tree.map(lambda ours, theirs: bool((np.asarray(ours) == np.asarray(theirs)).all()), four._moments, one._moments)
        )
    )
    assert four._step_count == 20
    assert one.step(batch_of(0)).loss == pytest.approx(following.loss, rel=1e-5)


@pytest.fixture(scope="module")
def on_one_device(jax_cache: Path) -> Callable[[Path], list[StepMetrics]]:
    """Two steps of a model on one device, computed once."""
    return functools.cache(lambda model: steps(started(setup_of(model, jax_cache)), range(2)))


@pytest.mark.full
@pytest.mark.parametrize(
    ("probed_model", "mesh"),
    [*(("llama", mesh) for mesh in MESHES), *(("gemma4", mesh) for mesh in MESHES if mesh.dcn > 1)],
    indirect=["probed_model"],
    ids=str,
)
@pytest.mark.parametrize("alone", [True, False])
def test_every_mesh_computes_the_step_of_one_device(
    probed_model: Path, jax_cache: Path, on_one_device: Callable[[Path], list[StepMetrics]], mesh: MeshShape, alone: bool
) -> None:
    """With one sequence a device and with all at once: XLA has been wrong on some of these (`models/jax/sharding_jax.py`)."""
    micro = mesh.dp_size if alone else ROWS
    actual = steps(started(setup_of(probed_model, jax_cache, mesh, micro)), range(2), micro)
    for ours, theirs in zip(actual, on_one_device(probed_model), strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-4)


@LIGHT
def test_fewer_micro_batches_than_a_step_can_have_run_the_same_program(probed_model: Path, jax_cache: Path) -> None:
    backend = started(setup_of(probed_model, jax_cache, EIGHT, micro=4))
    assert len({backend.step(unpacked(rows(count), 4, 48)).loss_tokens for count in (4, 8)}) == 2
    assert backend._take_step._cache_size() == 1
    # Micro-batches of several widths lie on the mesh as those of one do.
    padded, made = started(setup_of(probed_model, jax_cache, EIGHT, micro=4)), rows(8)
    ours, theirs = started(setup_of(probed_model, jax_cache, EIGHT, micro=4)).step(ragged(made, 4, 8)), padded.step(unpacked(made, 4, 48))
    assert len(set(ragged(made, 4, 8).widths)) == 2
    assert (ours.loss, ours.grad_norm) == pytest.approx((theirs.loss, theirs.grad_norm), rel=1e-4)


@LIGHT
def test_more_places_than_devices_are_refused(probed_model: Path, jax_cache: Path) -> None:
    with pytest.raises(InputError, match=r"has 16 places, but JAX sees 8 devices"):
        started(setup_of(probed_model, jax_cache, MeshShape(1, 16, 1)))


@pytest.mark.parametrize("probed_model", ["llama", "gemma4", *OTHERS], indirect=True)
def test_packed_rows_compute_what_they_compute_alone(probed_model: Path) -> None:
    """Hidden states of every token, whose loss is a function of them; rows longer than the window of tiny Gemma 4."""
    made: list[Row] = rows(3)
    structure = tunix_jax.build(read_architecture(probed_model), ModelConfig())
    mesh = tunix_jax.device_mesh(MeshShape(1, 1, 1))
    _, weights = tunix_jax.load_weights(structure, probed_model, mesh)

    def hidden(batch: Any) -> np.ndarray:
        compute = jax.jit(lambda *arrays: tunix_jax.hidden_states(structure, structure.trained, *arrays))
        return np.asarray(compute(weights, batch.tokens[0], batch.positions[0], batch.segment_ids[0]))

    together, alone = hidden(packed(made, 128))[0], hidden(unpacked(made, 3, 48))
    start = 0
    for row, single in zip(made, alone, strict=True):
        size = len(row.tokens)
        np.testing.assert_allclose(together[start : start + size], single[:size], rtol=1e-5, atol=1e-5)
        start += size


def say(*arguments: object) -> subprocess.Popen[str]:
    path = f"{SUPPORT}:{SUPPORT.parents[1] / 'platform'}"
    command = [sys.executable, str(SUPPORT / "jax_runs.py"), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})


def received(process: subprocess.Popen[str]) -> dict[str, Any]:
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return json.loads(next(line for line in said.splitlines() if line.startswith("{")))


@LIGHT
def test_other_rates_decay_warm_up_and_seed_compile_nothing_in_another_process(probed_model: Path, jax_cache: Path, tmp_path: Path) -> None:
    backend = started(setup_of(probed_model, jax_cache))
    steps(backend, range(1))
    backend.save_state(tmp_path)()
    backend.load_state(tmp_path)
    said = received(say(probed_model, jax_cache, tmp_path / "other"))
    assert said["hits"] > 0
    assert said["misses"] == 0


@pytest.mark.full
@pytest.mark.parametrize("probed_model", ["llama"], indirect=True)
def test_two_processes_take_the_steps_of_one(probed_model: Path, jax_cache: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    ranks = [say(probed_model, jax_cache, tmp_path / "state", rank, 2, address) for rank in range(2)]
    alone = received(say(probed_model, jax_cache, tmp_path / "alone"))
    both = [received(process) for process in ranks]
    assert [one["rank"] for one in both] == [0, 1]
    for one in both:
        assert one["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        assert one["agreed"] == [True, False]
        assert one["size"] == alone["size"]


@pytest.mark.full
@pytest.mark.parametrize("probed_model", ["llama"], indirect=True)
def test_remat_changes_memory_and_no_result(probed_model: Path, jax_cache: Path) -> None:
    lora = LoraSpec(rank=4, alpha=8.0, dropout=0.1)

    def measured(remat: str) -> tuple[int, list[float]]:
        backend = started(setup_of(probed_model, jax_cache, backend=BackendSpec("jax", remat=remat), lora=lora))
        taken = steps(backend, range(3))
        return kept_bytes(backend), [taken[0].grad_norm, *(step.loss for step in taken)]

    (most, plain), (least, layer), (some, dots) = (measured(remat) for remat in ("none", "layer", "dots"))
    assert least < some / 2 < most / 2
    assert layer == pytest.approx(plain, rel=1e-5)
    assert dots == pytest.approx(plain, rel=1e-5)


def kept_bytes(backend: JaxBackend) -> int:
    """Bytes that the forward pass leaves for the backward pass. XLA's own say little on a CPU: there it recomputes when it likes."""
    program = backend._program
    micro = {name: array[0] for name, array in backend._put(batch_of(0))[0].items()}

    def backward(trained: Any) -> Any:
        return jax.vjp(lambda values: summed_losses(program, values, backend._frozen, micro, step_key(0, 0))["loss"], trained)[1]

    with backend._mesh:
        return sum(array.size * array.dtype.itemsize for array in jax.tree.leaves(jax.eval_shape(backward, backend._trained)))


@pytest.mark.full
@pytest.mark.parametrize("probed_model", ["gemma4"], indirect=True)
def test_four_bits_shrink_the_base_and_still_learn(probed_model: Path, jax_cache: Path) -> None:
    model = ModelSpec(dtype="bfloat16")
    plain = started(setup_of(probed_model, jax_cache, model=model))
    packed_ = started(setup_of(probed_model, jax_cache, MeshShape(1, 2, 2), micro=8, model=ModelSpec(dtype="bfloat16", quantization="nf4")))
    before = steps(plain, range(1))[0].loss
    losses = [packed_.step(batch_of(0)).loss for _ in range(6)]
    assert losses[0] == pytest.approx(before, rel=0.1)
    assert losses[-1] < 0.9 * losses[0]

    def projections(backend: JaxBackend) -> int:
        flat = [(path, variable.get_value()) for path, variable in backend._frozen.flat_state()]
        matrices = [jax.tree.leaves(value) for path, value in flat if "proj" in str(path) or "einsum" in str(path)]
        return sum(array.nbytes for leaves in matrices for array in leaves)

    # 4 bits and a float32 scale for 64 values against 16 bits.
    assert 3.0 < projections(plain) / projections(packed_) < 4.0


@pytest.mark.full
def test_all_weights_train_without_an_adapter_on_any_mesh(probed_model: Path, jax_cache: Path) -> None:
    groups = {"lora": LoraSpec(rank=0), "optim": OptimSpec(steps=20, learning_rate=1e-3)}
    one = started(setup_of(probed_model, jax_cache, **groups))
    four = started(setup_of(probed_model, jax_cache, MeshShape(1, 2, 2), micro=4, **groups))
    start = one.export()
    assert {name: array.shape for name, array in start.items()} == {
        weight.hf_name: weight.hf_shape for weight in all_weights(read_architecture(probed_model))
    }
    whole, split = steps(one, range(5)), steps(four, range(5), micro=4)
    assert [step.loss for step in split] == pytest.approx([step.loss for step in whole], rel=1e-4)
    trained = one.export()
    assert difference(four.export(), trained) < 1e-3
    embedding = next(name for name in trained if "embed_tokens" in name)
    assert not np.array_equal(trained[embedding], start[embedding])
    assert one.step(batch_of(0)).loss < 0.6 * whole[0].loss
    # A token that no row has is trained by the output side of the tied embedding.
    assert np.abs(trained[embedding][1] - start[embedding][1]).max() > 0


@LIGHT
def test_the_output_weight_stays_split_over_tp(probed_model: Path, jax_cache: Path) -> None:
    backend = started(setup_of(probed_model, jax_cache, MeshShape(1, 1, 2)))
    assert tuple(backend._mesh.shape) == AXES
    arrays, live = backend._put(batch_of(0))
    with backend._mesh:
        text = backend._take_loss.lower(backend._trained, backend._frozen, arrays, live, np.float32(1)).compile().as_text()
    architecture = read_architecture(probed_model)
    whole = f"f32[{architecture.vocab},{architecture.hidden}]"
    assert f"f32[{architecture.vocab // 2},{architecture.hidden}]" in text
    assert whole not in text
