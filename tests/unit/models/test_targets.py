"""The table of names: which matrices LoRA adapts, and how both sides name and lay them out."""

import numpy as np
import pytest

from crossmesh.config.training import LORA_TARGETS
from crossmesh.errors import InputError
from crossmesh.models.architecture import Architecture
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.targets import all_weights, expand_targets, hf_module_names
from crossmesh.models.weights.random_weights import architecture_config


def llama(**changes: object) -> Architecture:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 300,
        "tie_word_embeddings": True,
    }
    return parse_architecture({**config, **changes}, "test")


def gemma4(**changes: object) -> Architecture:
    config = {
        "model_type": "gemma4_text",
        "num_hidden_layers": 6,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "global_head_dim": 64,
        "num_global_key_value_heads": 2,
        "attention_k_eq_v": True,
        "vocab_size": 512,
        "hidden_size_per_layer_input": 0,
    }
    return parse_architecture({**config, **changes}, "test")


def test_llama_has_seven_targets_a_layer_with_the_sizes_of_grouped_heads() -> None:
    found = {target.hf: (target.in_features, target.out_features) for target in expand_targets(llama(), LORA_TARGETS)}
    assert len(found) == 14
    assert found["model.layers.1.self_attn.q_proj"] == (96, 128)
    assert found["model.layers.1.self_attn.v_proj"] == (96, 64)
    assert found["model.layers.1.self_attn.o_proj"] == (128, 96)
    assert found["model.layers.0.mlp.down_proj"] == (160, 96)


def test_gemma4_layers_that_share_k_and_v_have_k_only() -> None:
    found = {target.hf: target for target in expand_targets(gemma4(), LORA_TARGETS)}
    assert len(found) == 5 * 7 + 6
    assert "model.layers.5.self_attn.v_proj" not in found
    shared = found["model.layers.5.self_attn.k_proj"]
    assert (shared.in_features, shared.out_features) == (128, 2 * 64)
    assert shared.weight.tunix == ("layers", 5, "attn", "k_einsum")
    assert found["model.layers.0.self_attn.v_proj"].weight.tunix == ("layers", 0, "attn", "kv_einsum", "v")
    assert found["model.layers.5.self_attn.q_proj"].out_features == 8 * 64
    assert found["model.layers.0.self_attn.q_proj"].out_features == 8 * 32


def test_biases_are_part_of_the_model_but_no_target() -> None:
    model = parse_architecture(architecture_config("tiny_qwen2"), "test")
    biases = {weight.hf_name: weight for weight in all_weights(model) if weight.hf_param == "bias"}
    assert len(biases) == 3 * 3
    key = biases["model.layers.2.self_attn.k_proj.bias"]
    assert (key.hf_shape, key.tunix_path) == ((4 * 32,), ("layers", 2, "attn", "k_bias"))
    adapted = expand_targets(model, LORA_TARGETS)
    assert len(adapted) == 3 * 7
    assert all(target.weight.hf_param == "weight" for target in adapted)


def test_gemma3_and_qwen3_have_norms_of_queries_and_keys() -> None:
    for name, expected in (("tiny_gemma3", "_query_norm"), ("tiny_qwen3", "q_norm")):
        weights = {weight.hf_name: weight for weight in all_weights(parse_architecture(architecture_config(name), "test"))}
        norm = weights["model.layers.3.self_attn.q_norm.weight"]
        assert (norm.hf_shape, norm.tunix) == ((32,), ("layers", 3, "attn", expected))


def test_names_follow_the_prefix_of_a_multimodal_checkpoint() -> None:
    nested = parse_architecture({"model_type": "gemma4", "text_config": _text_config()}, "test")
    assert hf_module_names(expand_targets(nested, ("up",)))[0] == "model.language_model.layers.0.mlp.up_proj"


def _text_config() -> dict[str, object]:
    return {
        "num_hidden_layers": 6,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "vocab_size": 512,
        "hidden_size_per_layer_input": 0,
    }


def test_only_v_where_all_layers_share_is_refused() -> None:
    shared = gemma4(layer_types=["full_attention"] * 6)
    with pytest.raises(InputError, match=r"Allowed: q, k, o, gate, up, down"):
        expand_targets(shared, ("v",))


def test_untied_output_projection_is_part_of_the_model_but_no_target() -> None:
    assert "lm_head.weight" not in {weight.hf_name for weight in all_weights(llama())}
    untied = llama(tie_word_embeddings=False)
    assert "lm_head.weight" in {weight.hf_name for weight in all_weights(untied)}
    assert not any("lm_head" in target.hf for target in expand_targets(untied, LORA_TARGETS))


@pytest.mark.parametrize("architecture", [llama(), llama(tie_word_embeddings=False), gemma4()], ids=["llama", "untied", "gemma4"])
def test_axes_lead_from_the_hf_shape_to_the_tunix_shape(architecture: Architecture) -> None:
    names = set()
    for weight in all_weights(architecture):
        assert weight.hf_name not in names
        names.add(weight.hf_name)
        array = np.zeros(weight.hf_shape, np.int8).reshape(weight.out_shape + weight.in_shape)
        assert (array.transpose(weight.axes) if weight.axes else array).shape == weight.tunix_shape
