"""Granite: its multipliers and its size as published, and what is refused."""

from typing import Any

import pytest

from crossmesh.errors import InputError
from crossmesh.models.architecture import Architecture, Multipliers
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.targets import parameter_count
from crossmesh.models.weights.random_weights import architecture_config
from crossmesh.plan.model import planned_model

PUBLISHED = {  # ibm-granite/granite-3.3-8b-instruct
    "architectures": ["GraniteForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attention_multiplier": 0.0078125,
    "bos_token_id": 0,
    "embedding_multiplier": 12.0,
    "eos_token_id": 0,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 12800,
    "logits_scaling": 16.0,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "granite",
    "num_attention_heads": 32,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 49159,
}


def tiny(**change: Any) -> Architecture:
    return parse_architecture(architecture_config("tiny_granite") | change, "config.json")


def test_8b_reads_as_published() -> None:
    model = parse_architecture(PUBLISHED, "config.json")
    assert (model.multipliers, model.query_scalar) == (Multipliers(12.0, 0.22, 0.0625), 128.0**2)
    assert (model.layers[0].head_dim, model.layers[0].rope.theta, model.tied) == (128, 1e7, True)
    assert parameter_count(model) == 8_170_864_640
    used = sum(work.count * work.active for work in planned_model(model, ()).layers)
    assert used == 40 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12800)


def test_multipliers_that_are_left_out_are_one() -> None:
    plain = {key: value for key, value in PUBLISHED.items() if "multiplier" not in key and key != "logits_scaling"}
    model = parse_architecture(plain, "config.json")
    assert (model.multipliers, model.query_scalar) == (Multipliers(), 1.0)


@pytest.mark.parametrize("key", ["embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"])
@pytest.mark.parametrize("value", [0, -1.0, "12", True, None])
def test_a_multiplier_that_is_not_possible_is_refused(key: str, value: object) -> None:
    with pytest.raises(InputError, match=f"{key}={value!r} is not possible. Allowed: a positive number"):
        tiny(**{key: value})


def test_another_family_has_no_multipliers() -> None:
    with pytest.raises(InputError, match=r"residual_multiplier=0\.5 is not a key of a llama model"):
        parse_architecture(architecture_config("tiny_llama") | {"residual_multiplier": 0.5}, "config.json")
