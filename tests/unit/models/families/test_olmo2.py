"""OLMo 2: its size as published, its norms, and how tp divides those that span all heads."""

import pytest

from crossmesh.config.training import ModelSpec
from crossmesh.errors import InputError
from crossmesh.hardware.mesh import MeshShape
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.placement import place, torch_axes, weight_axes
from crossmesh.models.targets import layer_weights, parameter_count
from crossmesh.models.weights.random_weights import architecture_config

PUBLISHED = {  # allenai/OLMo-2-1124-7B
    "model_type": "olmo2",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-06,
    "rope_theta": 500000,
    "tie_word_embeddings": False,
    "vocab_size": 100352,
}


def test_7b_has_7_billion_parameters() -> None:
    assert parameter_count(parse_architecture(PUBLISHED, "config.json")) == 7_298_617_344


def test_what_a_config_leaves_out_is_what_transformers_takes() -> None:
    model = parse_architecture({key: value for key, value in PUBLISHED.items() if not key.startswith(("rms", "rope", "max"))}, "x")
    assert (model.norm_epsilon, model.layers[0].rope.theta, model.max_positions) == (1e-5, 1e4, 2048)


def test_norms_follow_and_span_all_heads_which_tp_divides_on_both_backends() -> None:
    model = parse_architecture(architecture_config("tiny_olmo2"), "tiny")
    norms = {weight.hf.rpartition(".")[2]: weight for weight in layer_weights(model, 1) if "norm" in weight.hf}
    assert {name: weight.hf_shape for name, weight in norms.items()} == {
        "post_attention_layernorm": (256,),
        "post_feedforward_layernorm": (256,),
        "q_norm": (256,),
        "k_norm": (128,),
    }
    assert weight_axes(norms["q_norm"]) == torch_axes(norms["q_norm"]) == torch_axes(norms["k_norm"]) == ("tp",)
    assert torch_axes(norms["post_attention_layernorm"]) == (None,)
    for backend in ("jax", "torch"):
        place(model, MeshShape(1, 2, 4), backend, ModelSpec("olmo2"), ())


def test_a_head_size_of_its_own_is_refused() -> None:
    with pytest.raises(InputError, match="head_dim=64 is not a key of a olmo2 model"):
        parse_architecture(PUBLISHED | {"head_dim": 64}, "config.json")
