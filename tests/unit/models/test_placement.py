"""Where tensors lie on the mesh, what does not divide, and what replication costs."""

import time

import numpy as np
import pytest

from crossmesh.config.training import LORA_TARGETS, LoraSpec, ModelSpec, default_torch_kernel
from crossmesh.errors import InputError
from crossmesh.hardware.mesh import MeshShape
from crossmesh.models.architecture import Architecture
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.lora import lora_modules
from crossmesh.models.placement import lora_axes, nf4_view, place, row_parallel, torch_axes, weight_axes
from crossmesh.models.targets import all_weights, expand_targets, layer_weights, projections
from crossmesh.models.weights.random_weights import architecture_config, architecture_names

MODEL = ModelSpec(family="gemma4", dtype="bfloat16")


def architecture_of(name: str) -> Architecture:
    return parse_architecture(architecture_config(name), name)


@pytest.fixture(scope="module")
def gemma4_31b() -> Architecture:
    return architecture_of("gemma4_31b")


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("jax", "layers.5.attn.k_einsum.w axis 0 has size 4, tp=8. Allowed: tp one of 1, 2, 4. Set mesh.tp."),
        ("torch", "model.layers.5.self_attn.k_proj.weight has 4 key/value heads, tp=8. Allowed: tp one of 1, 2, 4. Set mesh.tp."),
    ],
)
def test_gemma_4_31b_does_not_train_on_eight_tp_ranks(gemma4_31b: Architecture, backend: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        place(gemma4_31b, MeshShape(1, 1, 8), backend, MODEL, lora_modules(LoraSpec(rank=64), gemma4_31b))
    assert str(error.value) == said
    place(gemma4_31b, MeshShape(1, 2, 4), backend, MODEL, lora_modules(LoraSpec(rank=64), gemma4_31b))


def test_fsdp_divides_evenly_on_jax_only(gemma4_31b: Architecture) -> None:
    with pytest.raises(
        InputError, match=r"embedder.input_embedding axis 1 has size 5376, fsdp=10. Allowed: fsdp one of 1, 2, 3, 4, 6, 7, 8."
    ):
        place(gemma4_31b, MeshShape(1, 10, 1), "jax", MODEL, lora_modules(LoraSpec(rank=64), gemma4_31b))
    place(gemma4_31b, MeshShape(1, 10, 1), "torch", MODEL, lora_modules(LoraSpec(rank=64), gemma4_31b))


def test_the_base_of_gemma_4_31b_is_split_and_its_adapter_says_what_it_costs(gemma4_31b: Architecture) -> None:
    placement = place(gemma4_31b, MeshShape(1, 2, 4), "jax", MODEL, lora_modules(LoraSpec(rank=64), gemma4_31b))
    assert all("lora" in one.name for one in placement.large)
    costs = {one.name: one for one in placement.large}
    # A [5376, 64] of q in 60 layers, split over fsdp=2, held by all 4 tp ranks: value and two moments in float32.
    q = costs["layers.*.attn.q_einsum.w_lora_a"]
    assert (q.count, q.over, q.bytes) == (60, ("tp",), 60 * 5376 // 2 * 64 * 12 * 3 // 4)
    # B [64, 21504] of gate, split over tp=4, held by both fsdp ranks.
    assert costs["layers.*.mlp.gate_proj.kernel_lora_b"].bytes == 60 * 64 * 21504 // 4 * 12 // 2
    assert "layers.*.attn.q_einsum.w_lora_a over tp 88.6 MiB" in placement.message
    # Norms are split over tp by Tunix: 4 of hidden size and 2 of a head in each layer, one at the end; skip_scale is whole everywhere.
    norms = 60 * 4 * 5376 + 50 * 2 * 256 + 10 * 2 * 512 + 5376
    assert placement.small_bytes == pytest.approx(norms * 2 // 4 // 2 + 60 * 2 * 7 / 8, abs=60)


def test_one_device_replicates_nothing(gemma4_31b: Architecture) -> None:
    placement = place(gemma4_31b, MeshShape(1, 1, 1), "jax", MODEL, lora_modules(LoraSpec(rank=64), gemma4_31b))
    assert (placement.large, placement.small_bytes, placement.message) == ((), 0, "")


def test_full_fine_tuning_has_no_adapter_and_float32_state() -> None:
    placement = place(architecture_of("tiny_llama"), MeshShape(1, 1, 4), "torch", ModelSpec(), ())
    assert placement.small_bytes == (4 * 2 * 128 + 128) * 12 * 3 // 4  # the norms, over tp


def test_a_tensor_and_its_adapter_are_split_alike() -> None:
    q = projections(architecture_of("tiny_llama"), 0)["q"]
    assert weight_axes(q) == ("fsdp", "tp", None)
    assert lora_axes(q) == (("fsdp", None), (None, "tp", None))
    o = projections(architecture_of("tiny_gemma4"), 5)["o"]
    assert weight_axes(o) == ("tp", None, "fsdp")
    assert lora_axes(o) == (("tp", None, None), (None, "fsdp"))


def test_every_axis_of_every_weight_has_a_meaning() -> None:
    for name in ("tiny_llama", "tiny_gemma3", "tiny_gemma4", "tiny_qwen2", "tiny_qwen3", "tiny_qwen3_moe", "gemma4_31b"):
        for weight in all_weights(architecture_of(name)):
            assert len(weight.dims) == len(weight.out_shape + weight.in_shape), weight.hf


def test_four_bit_blocks_are_64_values_of_a_row_of_the_checkpoint() -> None:
    for name in ("tiny_llama", "tiny_gemma3", "tiny_gemma4", "tiny_gemma4_e2b", "tiny_qwen2", "gemma4_31b", "gemma3_1b"):
        model = architecture_of(name)
        for weight in (weight for index in range(len(model.layers)) for weight in projections(model, index).values()):
            view, axis = nf4_view(weight)
            if weight.out_features * weight.in_features > 1 << 20:
                continue  # The shape alone was looked at.
            count = np.arange(weight.out_features * weight.in_features).reshape(weight.out_shape + weight.in_shape)
            seen = np.moveaxis((count.transpose(weight.axes) if weight.axes else count).reshape(view), axis, -1)
            blocks = seen.reshape(-1, 64)
            assert (blocks == blocks[:, :1] + np.arange(64)).all(), weight.hf
            assert (blocks[:, 0] % 64 == 0).all()


def test_weights_that_four_bit_blocks_do_not_divide_are_refused_on_both_backends() -> None:
    odd = parse_architecture({**architecture_config("tiny_llama"), "intermediate_size": 251}, "x")
    for backend in ("jax", "torch"):
        with pytest.raises(
            InputError, match=r"layers.0.mlp.down_proj.weight has 251 input features, which cannot be cut into blocks of 64"
        ):
            place(odd, MeshShape(1, 1, 1), backend, ModelSpec(quantization="nf4"), lora_modules(LoraSpec(rank=4), odd))


def test_a_bias_lies_as_its_weight_does_and_carries_no_adapter() -> None:
    model = architecture_of("tiny_qwen2")
    biases = [weight for weight in layer_weights(model, 0) if weight.hf_param == "bias"]
    assert [weight_axes(weight) for weight in biases] == [("tp",)] * 3
    placement = place(model, MeshShape(1, 2, 1), "jax", ModelSpec(), lora_modules(LoraSpec(rank=4, targets=("q",)), model))
    # Whole on both fsdp ranks: norms and biases, and B [4, 256] of q with its moments.
    assert placement.small_bytes == (3 * (4 * 256 * 12 + (256 + 128 + 128) * 4 + 2 * 256 * 4) + 256 * 4) // 2


def test_a_planner_can_ask_often(gemma4_31b: Architecture) -> None:
    start = time.process_time()  # Not of the clock: the machine may have other work.
    for _ in range(200):
        place(gemma4_31b, MeshShape(1, 2, 4), "jax", MODEL, lora_modules(LoraSpec(rank=64), gemma4_31b))
    assert time.process_time() - start < 2  # ten thousand in seconds


def test_experts_are_split_by_inner_features_and_width_on_jax_and_not_over_tp_on_torch() -> None:
    model = architecture_of("gemma4_26b_a4b")
    axes = {weight.hf_name: weight_axes(weight) for weight in layer_weights(model, 0)}
    assert axes["model.layers.0.experts.gate_up_proj"] == (None, None, "fsdp", "tp")
    assert axes["model.layers.0.experts.down_proj"] == (None, "tp", "fsdp")
    modules = lora_modules(LoraSpec(rank=8), model)
    place(model, MeshShape(1, 4, 2), "jax", MODEL, modules)
    place(model, MeshShape(1, 8, 1), "torch", MODEL, modules)
    with pytest.raises(InputError, match=r"experts.gate_up_proj .* tp=2. Allowed: mesh.tp=1 \(mesh.fsdp=8"):
        place(model, MeshShape(1, 4, 2), "torch", MODEL, modules)


def test_the_table_of_per_layer_inputs_is_split_over_both_axes() -> None:
    model = architecture_of("gemma4_e2b")
    table = next(weight for weight in all_weights(model) if "embed_tokens_per_layer" in weight.hf)
    assert weight_axes(table) == ("tp", None, "fsdp")
    place(model, MeshShape(1, 8, 1), "jax", MODEL, lora_modules(LoraSpec(rank=8), model))
    with pytest.raises(InputError, match=r"has size 1, tp=2"):  # E2B has one key/value head.
        place(model, MeshShape(1, 4, 2), "jax", MODEL, lora_modules(LoraSpec(rank=8), model))


@pytest.mark.parametrize("name", architecture_names())
def test_tensor_parallel_divides_one_side_of_every_projection(name: str) -> None:
    """What is planned and checked, and what `train/sharding_torch.py` divides, follow from the same dimensions."""
    architecture = parse_architecture(architecture_config(name), name)
    for target in expand_targets(architecture, LORA_TARGETS):
        outs = len(target.weight.out_shape)
        split = torch_axes(target.weight)
        assert row_parallel(target.weight) == (target.name in ("o", "down"))
        assert ("tp" in split[:outs]) != ("tp" in split[outs:]), target.hf


def test_the_kernel_of_a_family_is_that_of_its_models() -> None:
    for name in architecture_names():
        architecture = parse_architecture(architecture_config(name), name)
        assert default_torch_kernel(architecture.family) == ("plain" if architecture.attention_softcap else "sdpa")
