"""Gemma 4's variants: experts, per-layer inputs, layers that use an earlier layer's keys and values, and every name of their weights."""

from typing import Any

import pytest

from crossmesh.config.training import LORA_TARGETS
from crossmesh.errors import InputError
from crossmesh.models.architecture import Architecture, Experts
from crossmesh.models.families.registry import family_of, parse_architecture
from crossmesh.models.quantization import kept_modules
from crossmesh.models.targets import all_weights, expand_targets, parameter_count, projections
from crossmesh.models.weights.random_weights import architecture_config

TINY_E2B, TINY_MOE = "tiny_gemma4_e2b", "tiny_gemma4_moe"


def shipped(name: str, **change: Any) -> Architecture:
    return parse_architecture(architecture_config(name) | change, "config.json")


@pytest.mark.parametrize(
    ("name", "billions"),
    [("gemma4_31b", 30.7), ("gemma4_26b_a4b", 25.2), ("gemma4_e4b", 7.5), ("gemma4_e2b", 4.6)],
)
def test_published_models_have_the_parameters_that_their_names_say(name: str, billions: float) -> None:
    # E4B and E2B count 4 and 2 billion without the tables that look tokens up.
    assert parameter_count(shipped(name)) / 1e9 == pytest.approx(billions, abs=0.05)


def test_e2b_has_fifteen_layers_with_keys_and_values_and_wide_ones_after_them() -> None:
    model = shipped("gemma4_e2b")
    assert [layer.kv_from for layer in model.layers[:15]] == [None] * 15
    assert {(layer.attention, layer.kv_from) for layer in model.layers[15:]} == {("sliding", 13), ("global", 14)}
    assert [model.ffn_of(index) for index in (14, 15)] == [6144, 12288]
    assert model.per_layer_input == 256


def test_e4b_shares_keys_and_values_without_wide_layers() -> None:
    model = shipped("gemma4_e4b")
    assert {(layer.attention, layer.kv_from) for layer in model.layers[24:]} == {("sliding", 22), ("global", 23)}
    assert {model.ffn_of(index) for index in range(42)} == {10240}


def test_the_source_is_the_last_layer_of_the_same_kind() -> None:
    # Not the last two layers that have keys and values, as Tunix 0.1.7 guesses.
    assert [layer.kv_from for layer in shipped(TINY_E2B).layers] == [None, None, None, None, 3, 3, 1]


def test_26b_a4b_has_experts_beside_a_dense_branch() -> None:
    model = shipped("gemma4_26b_a4b")
    assert (model.experts, model.ffn, model.layers[5].shared_kv) == (Experts(count=128, per_token=8, ffn=704), 2112, True)
    shapes = {weight.hf_name: weight for weight in all_weights(model)}
    fused = shapes["model.layers.3.experts.gate_up_proj"]
    assert (fused.hf_shape, fused.tunix_shape) == ((128, 1408, 2816), (2, 128, 2816, 704))
    assert shapes["model.layers.3.experts.down_proj"].tunix_shape == (128, 704, 2816)
    assert shapes["model.layers.3.router.proj.weight"].hf_shape == (128, 2816)


def test_targets_are_attention_and_the_dense_branch() -> None:
    names = {target.hf for target in expand_targets(shipped(TINY_MOE), LORA_TARGETS)}
    assert "model.layers.5.mlp.gate_proj" in names
    assert not any("experts" in name or "router" in name for name in names)


def test_a_layer_without_keys_of_its_own_has_no_targets_for_them() -> None:
    model = shipped(TINY_E2B)
    assert set(projections(model, 3)) == {"q", "k", "v", "o", "gate", "up", "down"}
    assert set(projections(model, 4)) == {"q", "o", "gate", "up", "down"}
    assert {target.layer for target in expand_targets(model, ("k", "v"))} == {0, 1, 2, 3}
    names = {weight.hf_name for weight in all_weights(model)}
    assert "model.layers.3.self_attn.k_norm.weight" in names
    assert "model.layers.4.self_attn.k_norm.weight" not in names
    # Published files hold them all the same.
    assert "model.layers.4.self_attn.k_norm.weight" in family_of(model).unused(model)
    assert not family_of(model).unused(model) & names


def test_a_wide_layer_has_wide_projections() -> None:
    model = shipped(TINY_E2B)
    assert [projections(model, index)["down"].hf_shape for index in (3, 4)] == [(128, 192), (128, 384)]


def test_the_table_of_per_layer_inputs_is_read_layer_by_layer() -> None:
    weights = {weight.hf_name: weight for weight in all_weights(shipped(TINY_E2B))}
    table = weights["model.embed_tokens_per_layer.weight"]
    assert (table.hf_shape, table.tunix_shape) == ((512, 7 * 48), (512, 7, 48))
    projection = weights["model.per_layer_model_projection.weight"]
    assert (projection.hf_shape, projection.tunix_shape) == ((7 * 48, 128), (128, 7, 48))


def test_a_config_that_leaves_the_last_layer_sliding_is_read_as_transformers_reads_it() -> None:
    kinds = ["full_attention", *["sliding_attention"] * 6]
    assert [layer.attention for layer in shipped(TINY_E2B, layer_types=kinds).layers] == ["global", *["sliding"] * 5, "global"]


def test_four_bits_are_for_what_lora_can_adapt() -> None:
    assert kept_modules(shipped("tiny_gemma4")) == ("lm_head",)
    assert kept_modules(shipped(TINY_MOE)) == ("lm_head", *(f"model.layers.{index}.router.proj" for index in range(6)))
    assert {name.rpartition(".")[2] for name in kept_modules(shipped(TINY_E2B))} == {
        "lm_head",
        "per_layer_input_gate",
        "per_layer_projection",
        "per_layer_model_projection",
    }


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers=6 of 7 layers"),  # only a sliding one is left
        ({"num_kv_shared_layers": 8}, "num_kv_shared_layers=8 of 7 layers"),
        ({"vocab_size_per_layer_input": 256}, "vocab_size_per_layer_input=256"),
        ({"enable_moe_block": True}, "num_experts=None"),
        ({"enable_moe_block": True, "num_experts": 4, "top_k_experts": 5, "moe_intermediate_size": 8}, "top_k_experts=5"),
    ],
)
def test_what_is_not_possible_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        shipped(TINY_E2B, **change)
