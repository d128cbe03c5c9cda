"""The torch backend against transformers and PEFT themselves: masks, loss, steps, state and the exported adapter."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from torch._dynamo.utils import counters
from torch._inductor.cpp_builder import cpp_compiler_search
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from arrays import frobenius
from crossmesh.adapters.initial import FloatArray
from crossmesh.adapters.peft_format import write_adapter
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import BackendSpec, LoraSpec, ModelSpec, OptimSpec, default_torch_kernel
from crossmesh.data.batches import PackedBatch, Row
from crossmesh.errors import InputError
from crossmesh.hardware.mesh import MeshShape
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.placement import Placement
from crossmesh.models.targets import all_weights, expand_targets, hf_module_names
from crossmesh.models.torch.hf_torch import hidden_states, load_base, logits, model_inputs, reference_logits
from crossmesh.models.weights.fetch import fetch_model
from crossmesh.train import model_torch, torch_backend
from crossmesh.train.backend import TrainingSetup
from crossmesh.train.schedule import learning_rate
from crossmesh.train.torch_backend import TorchBackend
from crossmesh.verify.exchange.check import tiny_models
from random_rows import packed, ragged, rows, unpacked

pytestmark = pytest.mark.integration
FAMILIES = ("llama", "gemma4")
OTHERS = [name.removeprefix("tiny_") for name in tiny_models() if name not in ("tiny_llama", "tiny_gemma4")]
LENGTH = 48
VARIANTS = pytest.mark.parametrize(
    "folder",
    [
        *FAMILIES,
        *(pytest.param(name, marks=pytest.mark.full) for name in OTHERS),
    ],
    indirect=True,
)
"""Two families, and in `make test-full` the others, and Gemma 4's experts, per-layer inputs and shared keys and values as well."""


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fetch_model(tiny_models()[f"tiny_{request.param}"], tmp_path_factory.mktemp("cache")).path


def setup_of(
    folder: Path, dtype: str = "float32", attention: str = "", remat: str = "none", compiled: str = "none", **lora: Any
) -> TrainingSetup:
    optim = OptimSpec(steps=20, learning_rate=1e-2, weight_decay=0.01)
    spec = ExperimentSpec(
        model=ModelSpec(dtype=dtype),
        lora=LoraSpec(**{"rank": 4, "alpha": 8.0, **lora}),
        optim=optim,
        backend=BackendSpec(attention=attention or default_torch_kernel(read_architecture(folder).family), remat=remat, compile=compiled),
    )
    return TrainingSetup.of(spec, folder, folder)


def batch_of(made: list[Row], micro: int) -> PackedBatch:
    return unpacked(made, micro, LENGTH)


def started(folder: Path, **settings: Any) -> TorchBackend:
    backend = TorchBackend()
    backend.init(setup_of(folder, **settings))
    return backend


def moments(backend: TorchBackend) -> dict[str, torch.Tensor]:
    """First moments by name."""
    return {name: backend._optimizer.state[part]["exp_avg"] for name, part in zip(backend._trained, backend._parts, strict=True)}


@VARIANTS
def test_logits_of_a_plain_row_are_transformers_own(folder: Path) -> None:
    row = rows(1)[0]
    tokens = row.tokens[None]
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        reference = model(input_ids=torch.from_numpy(tokens).long()).logits
    ours = reference_logits(folder, tokens, np.arange(len(row.tokens), dtype=np.int32)[None], np.ones_like(tokens))
    assert reference.std() > 1  # flat logits would prove nothing
    assert np.abs(ours - reference.numpy()).max() < 1e-4


def test_padding_and_packing_do_not_reach_a_row(folder: Path) -> None:
    first, second = rows(2)
    batch = packed((first, second), 96)
    together = reference_logits(folder, batch.tokens[0], batch.positions[0], batch.segment_ids[0])[0]
    start = 0
    for row in (first, second):
        size = len(row.tokens)
        alone = reference_logits(folder, row.tokens[None], np.arange(size, dtype=np.int32)[None], np.ones((1, size), np.int32))[0]
        assert np.abs(together[start : start + size] - alone).max() < 1e-4
        start += size


def token_losses(backend: TorchBackend, batch: PackedBatch) -> torch.Tensor:
    """The loss of each loss token of a batch of one micro-batch, row by row."""
    base, architecture = backend._model.base, backend._architecture
    arrays = (batch.tokens[0], batch.positions[0], batch.segment_ids[0])
    row, column = (torch.from_numpy(axis) for axis in batch.loss_mask[0].nonzero())
    with torch.no_grad():
        hidden = hidden_states(base, architecture, model_inputs(backend._setup.attention, architecture, torch.float32, *arrays, "cpu"))
        scores = logits(base, architecture, hidden[row, column - 1])
    return cross_entropy(scores, torch.from_numpy(batch.tokens[0]).long()[row, column], reduction="none")


@VARIANTS
@pytest.mark.parametrize("kernel", ["plain", "sdpa"])
def test_every_token_of_a_packed_row_has_the_loss_it_has_alone(folder: Path, kernel: str) -> None:
    if kernel == "sdpa" and default_torch_kernel(read_architecture(folder).family) == "plain":
        pytest.skip("sdpa does not cap attention scores")
    made = rows(3)
    backend = started(folder, attention=kernel)
    alone, together = (token_losses(backend, batch) for batch in (unpacked(made, 3, LENGTH), packed(made, 128)))
    assert len(alone) == sum(row.loss_mask.sum() for row in made)
    assert (alone - together).abs().max() < 1e-5
    one, other = started(folder).step(unpacked(made, 1, LENGTH)), backend.step(packed(made, 128))
    assert (one.loss, one.grad_norm) == pytest.approx((other.loss, other.grad_norm), rel=1e-5)


class Made(TorchDispatchMode):
    """Remembers every storage that operations made, without keeping it; views of a model's weights are none."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return result

    def alive(self) -> int:
        """Bytes that something still holds."""
        return sum(size for key, (reference, size) in self.storages.items() if key not in self.weights and not reference.expired())


@VARIANTS
def test_rematerialization_keeps_less_and_changes_nothing(folder: Path) -> None:
    batch, kept, metrics = batch_of(rows(4), 4), {}, {}
    for remat in ("none", "dots", "layer"):
        backend = started(folder, remat=remat)
        backend._model.train()
        with Made(backend._model) as made:
            loss = backend._losses(batch, 0)["loss"]
        kept[remat] = made.alive()
        del loss
        metrics[remat] = [backend.step(batch) for _ in range(2)]
    assert kept["layer"] < 0.5 * kept["dots"]
    assert kept["dots"] < 0.85 * kept["none"]
    assert metrics["dots"] == metrics["none"]
    assert metrics["layer"] == metrics["none"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("folder", "settings"),
    [("llama", {}), ("llama", {"remat": "layer", "dropout": 0.1}), ("gemma4", {})],
    indirect=["folder"],
)
def test_compiled_layers_compute_what_they_compute_eagerly(folder: Path, settings: dict[str, Any]) -> None:
    """At any width, packed and not; widths do not each have a program."""
    torch.compiler.reset()
    backends = []
    for how in ("none", "layer"):
        setup = setup_of(folder, compiled=how, **settings)
        backend = TorchBackend()
        # AdamW makes as much of a gradient that is nothing but rounding as of any other: with small steps that stays small.
        backend.init(replace(setup, optim=replace(setup.optim, learning_rate=1e-4)))
        backends.append(backend)
    eager, compiled = backends
    made, programs = rows(4), []
    batches = [ragged(made, 1), packed(made[:3], 128), ragged(rows(4, 1), 1)]
    batches += [packed(rows(3, 1), width) for width in (120, 136, 150, 192)]
    for batch in batches:
        expected, found = eager.step(batch), compiled.step(batch)
        assert (found.loss, found.grad_norm) == pytest.approx((expected.loss, expected.grad_norm), rel=1e-5)
        programs.append(counters["stats"]["unique_graphs"])
    assert 0 < programs[0] < programs[1] == programs[2]
    assert programs[3] == programs[-1]  # The second width of packed rows is compiled for all that come.
    theirs, ours = moments(eager), moments(compiled)
    apart = np.sqrt(sum((theirs[name] - ours[name]).square().sum().item() for name in theirs))
    assert apart < 1e-5 * np.sqrt(sum(one.square().sum().item() for one in theirs.values()))


@pytest.mark.full
@pytest.mark.parametrize("folder", ["llama"], indirect=True)
def test_a_layer_that_cannot_be_compiled_says_what_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()
    cpp_compiler_search.cache_clear()
    with (
        torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}),
        pytest.raises(InputError, match=r"backend\.compile=layer.*Set backend\.compile=none or install"),
    ):
        started(folder, compiled="layer").step(batch_of(rows(2), 2))
    cpp_compiler_search.cache_clear()


@VARIANTS
def test_full_fine_tuning_trains_every_weight_as_transformers_would(folder: Path) -> None:
    made = rows(2)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    tokens, total = [torch.from_numpy(row.tokens).long() for row in made], sum(int(row.loss_mask.sum()) for row in made)
    for row, ids in zip(made, tokens, strict=True):
        nll = cross_entropy(model(input_ids=ids[None]).logits[0, :-1], ids[1:], reduction="none")
        (nll[torch.from_numpy(row.loss_mask[1:])].sum() / total).backward()
    backend = started(folder, rank=0)
    before = backend.export()
    metrics = backend.step(batch_of(made, 1))
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    assert metrics.grad_norm == pytest.approx(norm.item(), rel=1e-4)
    after = backend.export()
    assert set(after) == {weight.hf_name for weight in all_weights(read_architecture(folder))}
    assert {name for name in after if np.array_equal(before[name], after[name])} <= {name for name in after if "layer_scalar" in name}


def test_a_base_that_is_there_already_is_adapted_in_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a 4-bit base is, which transformers loads whole: only LoRA's parameters are made and filled."""
    expected = started(folder).evaluate(batch_of(rows(4), 4)).loss
    monkeypatch.setattr(torch_backend, "check_torch", lambda *_: Placement((), 0))
    monkeypatch.setattr(model_torch, "quantized_base", lambda path, *_: load_base(path, "float32"))
    setup = setup_of(folder)
    backend = TorchBackend()
    backend.init(replace(setup, model=replace(setup.model, quantization="nf4")))
    assert backend.evaluate(batch_of(rows(4), 4)).loss == pytest.approx(expected, rel=1e-6)
    assert backend.step(batch_of(rows(4), 4)).grad_norm > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": ModelSpec(quantization="nf4")}, "needs a GPU"),
        ({"attention": "flex"}, "no backward pass"),
        ({"mesh": MeshShape(data=1, fsdp=2, tp=1)}, "2 places, but 1 torch process"),
        ({"mesh": MeshShape(data=1, fsdp=1, tp=3)}, "tp=3"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_weights_are_read(folder: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TorchBackend().init(replace(setup_of(folder), **change))


def test_a_save_holds_the_state_it_was_asked_for_though_training_goes_on(folder: Path, tmp_path: Path) -> None:
    backend, batch = started(folder), batch_of(rows(4), 4)
    backend.step(batch)
    waiting = backend.save_state(tmp_path)
    second = backend.step(batch)
    waiting()
    backend.load_state(tmp_path)
    assert backend.step(batch) == second


def test_the_loss_is_the_mean_over_loss_tokens_of_the_whole_batch(folder: Path) -> None:
    """Held against transformers' logits row by row, with no padding, no mask and no selection of positions."""
    made = rows(4)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    total, count = 0.0, 0
    with torch.inference_mode():
        for row in made:
            tokens = torch.from_numpy(row.tokens).long()
            nll = cross_entropy(model(input_ids=tokens[None]).logits[0, :-1], tokens[1:], reduction="none")
            total += float(nll[torch.from_numpy(row.loss_mask[1:])].sum())
            count += int(row.loss_mask.sum())
    backend = started(folder)
    for micro in (4, 2, 1):
        metrics = backend.evaluate(batch_of(made, micro))
        assert metrics.loss == pytest.approx(total / count, abs=2e-5)
        assert metrics.loss_tokens == count
    two = packed(made[:2], 96)
    assert backend.evaluate(two).loss == pytest.approx(backend.evaluate(batch_of(made[:2], 2)).loss, abs=2e-5)


def test_a_step_is_the_same_however_the_batch_is_accumulated(folder: Path) -> None:
    results = []
    for micro in (4, 1):
        backend = started(folder)
        before = backend.export()
        metrics = [backend.step(batch_of(rows(4, seed), micro)) for seed in range(2)]
        results.append((metrics, backend.export()))
    (whole, adapter), (parts, other) = results
    assert [m.loss for m in whole] == pytest.approx([m.loss for m in parts], abs=2e-5)
    assert [m.grad_norm for m in whole] == pytest.approx([m.grad_norm for m in parts], rel=1e-4)
    # Adam's first steps are as long for a gradient that is nothing but rounding: single values may differ by a whole step.
    moved = frobenius({name: adapter[name] - before[name] for name in adapter})
    assert frobenius({name: adapter[name] - other[name] for name in adapter}) < 1e-2 * moved


@pytest.mark.parametrize("kernel", ["plain", "sdpa"])
@pytest.mark.parametrize("remat", ["none", "dots"])
def test_padding_that_is_not_computed_changes_nothing(folder: Path, kernel: str, remat: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for make in (lambda made: unpacked(made, 2, LENGTH), lambda made: ragged(made, 2), lambda made: ragged(made, 1)):
        backend = started(folder, attention=kernel, remat=remat, dropout=0.1)
        metrics = [backend.step(make(rows(4, seed))) for seed in range(2)]
        metrics.append(backend.evaluate(make(rows(4))))
        results.append([value for one in metrics for value in (one.loss, one.grad_norm)])
    assert results[1] == pytest.approx(results[0], rel=1e-4)
    assert results[2] == pytest.approx(results[0], rel=1e-4)

    seen: list[tuple[int, ...]] = []
    monkeypatch.setattr(torch_backend, "model_inputs", lambda *given: seen.append(given[3].shape) or model_inputs(*given))
    batch = ragged(rows(4), 1)
    backend.step(batch)
    assert seen == [(1, len(row.tokens)) for row in sorted(rows(4), key=lambda row: -len(row.tokens))]
    assert batch.padded_tokens == batch.real_tokens


def test_steps_follow_the_schedule_and_learn_and_leave_the_base_alone(folder: Path) -> None:
    backend = started(folder)
    before = {name: value.clone() for name, value in backend._model.base.state_dict().items() if "lora_" not in name}
    batch = batch_of(rows(4), 4)
    metrics = [backend.step(batch) for _ in range(12)]
    assert [m.learning_rate for m in metrics] == [learning_rate(step, setup_of(folder).optim) for step in range(12)]
    assert metrics[-1].loss < 0.7 * metrics[0].loss
    after = backend._model.base.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_the_first_step_is_adamw_by_its_formula(folder: Path) -> None:
    """After one step from zero moments: w - lr * (wd * w + g / (|g| + eps)), so B moves by lr exactly where it has a gradient."""
    backend = started(folder)
    start = backend.export()
    rate = backend.step(batch_of(rows(4), 4)).learning_rate
    moved = backend.export()
    name_a = next(name for name in start if name.endswith("q_proj.lora_A.weight"))
    name_b = name_a.replace("lora_A", "lora_B")
    # B = 0 at first: A has no gradient and only decays; B moves by about the learning rate.
    assert np.allclose(moved[name_a], start[name_a] * (1 - rate * 0.01), rtol=1e-6)
    assert np.allclose(np.abs(moved[name_b]), rate, rtol=1e-3)


def test_clipping_scales_the_gradient_to_the_limit(folder: Path) -> None:
    def second_moments(clip: float) -> tuple[float, dict[str, torch.Tensor]]:
        backend = TorchBackend()
        setup = setup_of(folder)
        backend.init(replace(setup, optim=replace(setup.optim, clip_norm=clip)))
        norm = backend.step(batch_of(rows(4), 4)).grad_norm
        return norm, moments(backend)

    norm, free = second_moments(0.0)
    clipped_norm, clipped = second_moments(norm / 4)
    assert clipped_norm == norm
    name = max(free, key=lambda key: float(free[key].abs().max()))
    assert torch.allclose(clipped[name], free[name] / 4, rtol=1e-5)
    _, loose = second_moments(norm * 4)
    assert torch.equal(loose[name], free[name])


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_two_runs_and_a_resumed_one_are_bit_equal(folder: Path, tmp_path: Path, dropout: float) -> None:
    batches = [batch_of(rows(4, seed), 2) for seed in range(4)]
    whole, again = started(folder, dropout=dropout), started(folder, dropout=dropout)
    losses = [whole.step(batch) for batch in batches]
    first = [again.step(batch) for batch in batches[:2]]
    again.save_state(tmp_path)()
    torch.manual_seed(12345)
    resumed = started(folder, dropout=dropout)
    resumed.load_state(tmp_path)
    assert first + [resumed.step(batch) for batch in batches[2:]] == losses
    expected, actual = whole.export(), resumed.export()
    assert all(np.array_equal(expected[name], actual[name]) for name in expected)


def test_state_can_be_saved_before_the_first_step_and_loaded_over_a_later_one(folder: Path, tmp_path: Path) -> None:
    backend, batch = started(folder), batch_of(rows(4), 4)
    backend.save_state(tmp_path)()
    first = backend.step(batch)
    backend.load_state(tmp_path)
    assert backend.step(batch) == first
    assert {file.suffix for file in tmp_path.iterdir()} == {".safetensors"}


def test_the_base_in_bfloat16_keeps_adapter_and_optimizer_in_float32(folder: Path) -> None:
    backend, batch = started(folder, dtype="bfloat16"), batch_of(rows(4), 4)
    reference = started(folder).evaluate(batch).loss
    assert backend.evaluate(batch).loss == pytest.approx(reference, rel=0.02)
    assert backend.step(batch).loss != reference
    assert {one.parameter.dtype for one in backend._trained.values()} == {torch.float32}
    assert {moment.dtype for moment in moments(backend).values()} == {torch.float32}
    assert next(parameter for name, parameter in backend._model.base.named_parameters() if "lora_" not in name).dtype == torch.bfloat16


def export(backend: TorchBackend, folder: Path, target: Path) -> dict[str, FloatArray]:
    arrays = backend.export()
    modules = hf_module_names(expand_targets(read_architecture(folder), backend._setup.lora.targets))
    write_adapter(target, arrays, rank=4, alpha=8.0, dropout=0.0, base_model="random", modules=modules)
    return arrays


def test_peft_loads_the_exported_adapter_as_the_trained_model(folder: Path, tmp_path: Path) -> None:
    backend, batch = started(folder), batch_of(rows(4), 4)
    for _ in range(3):
        backend.step(batch)
    arrays = export(backend, folder, tmp_path / "adapter")
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.from_numpy(rows(1)[0].tokens).long()[None]
    with torch.inference_mode():
        untrained = base(input_ids=tokens).logits
        loaded = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
        assert len([name for name, _ in loaded.named_parameters() if "lora_" in name]) == len(arrays)
        served = loaded(input_ids=tokens).logits
        backend._model.eval()
        base, architecture, row = backend._model.base, backend._architecture, rows(1)[0].tokens[None]
        inputs = model_inputs("sdpa", architecture, torch.float32, row, np.arange(row.size, dtype=np.int32)[None], np.ones_like(row), "cpu")
        trained = logits(base, architecture, hidden_states(base, architecture, inputs))
    assert (served - trained).abs().max() < 1e-4
    assert (served - untrained).abs().max() > 0.1
