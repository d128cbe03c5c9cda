"""Architectures are read from config.json as transformers reads them, and what is not supported is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from crossmesh.errors import InputError
from crossmesh.models.families.registry import parse_architecture, read_architecture
from crossmesh.models.weights.random_weights import architecture_config, architecture_names


def parse(config: dict[str, Any]) -> Any:
    return parse_architecture(config, "config.json")


def test_gemma4_31b_has_the_layers_of_the_paper() -> None:
    model = parse(architecture_config("gemma4_31b"))
    assert (len(model.layers), model.hidden, model.ffn, model.vocab, model.logit_softcap) == (60, 5376, 21504, 262144, 30.0)
    assert [index for index, layer in enumerate(model.layers) if layer.attention == "global"] == list(range(5, 60, 6))
    sliding, full = model.layers[0], model.layers[5]
    assert (sliding.q_dim, sliding.kv_dim, sliding.window, sliding.shared_kv, sliding.rope.theta) == (8192, 4096, 1024, False, 1e4)
    assert (full.q_dim, full.kv_dim, full.window, full.shared_kv, full.rope.theta, full.rope.fraction) == (16384, 2048, 0, True, 1e6, 0.25)


def test_transformers_own_spelling_of_gemma4_reads_the_same() -> None:
    published = architecture_config("tiny_gemma4")
    saved = {key: value for key, value in published.items() if key not in ("global_head_dim", "num_global_key_value_heads")}
    saved["per_layer_config"] = {"5": {"head_dim": 64, "num_key_value_heads": 2}}
    assert parse(saved) == parse(published)


def test_a_multimodal_gemma4_gives_its_text_model_under_its_own_prefix() -> None:
    model = parse({"model_type": "gemma4", "text_config": architecture_config("tiny_gemma4")})
    assert model.layer_prefix(2) == "model.language_model.layers.2."
    assert model.layers == parse(architecture_config("tiny_gemma4")).layers


def test_layer_types_left_out_are_five_sliding_then_one_global() -> None:
    config = architecture_config("tiny_gemma4") | {"num_hidden_layers": 8}
    del config["layer_types"]
    assert "".join(layer.attention[0] for layer in parse(config).layers) == "sssssgsg"


def test_gemma3_1b_reads_as_published() -> None:
    model = parse(architecture_config("gemma3_1b"))
    assert (len(model.layers), model.hidden, model.vocab, model.query_scalar, model.tied) == (26, 1152, 262144, 256, True)
    assert [index for index, layer in enumerate(model.layers) if layer.attention == "global"] == [5, 11, 17, 23]
    sliding, full = model.layers[0], model.layers[5]
    assert (sliding.window, sliding.rope.theta, sliding.rope.factor, sliding.kv_dim) == (512, 1e4, 1.0, 256)
    assert (full.window, full.rope.theta, full.rope.kind, full.rope.factor) == (0, 1e6, "default", 1.0)


def test_a_multimodal_gemma3_says_only_where_it_differs_from_the_defaults() -> None:
    model = parse(architecture_config("gemma3_27b"))
    assert model.layer_prefix(2) == "model.language_model.layers.2."
    assert (model.vocab, model.max_positions, model.query_scalar, model.norm_epsilon) == (262208, 131072, 168, 1e-6)
    sliding, full = model.layers[0], model.layers[5]
    assert (sliding.q_dim, sliding.kv_dim, sliding.window) == (4096, 2048, 1024)
    # The one rope_scaling of older files is that of global layers.
    assert (sliding.rope.kind, full.rope.kind, full.rope.factor, full.rope.theta) == ("default", "linear", 8.0, 1e6)
    assert parse({"model_type": "gemma3", "text_config": {}}).layers[0].q_dim == 8 * 256


def test_the_spellings_of_gemma3s_rotation_read_the_same() -> None:
    new = architecture_config("tiny_gemma3")
    old = {key: value for key, value in new.items() if key != "rope_parameters"}
    old |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert parse(old) == parse(new)


def test_qwen2_and_qwen3_differ_in_the_size_of_a_head() -> None:
    qwen2, qwen3 = parse(architecture_config("qwen2_5_0_5b")), parse(architecture_config("qwen3_0_6b"))
    assert (qwen2.layers[0].head_dim, qwen2.layers[0].kv_dim, qwen2.layers[0].rope.theta) == (64, 128, 1e6)
    assert (qwen3.layers[0].head_dim, qwen3.layers[0].q_dim, qwen3.hidden) == (128, 2048, 1024)
    unsaid = {key: value for key, value in architecture_config("tiny_qwen3").items() if key != "head_dim"}
    assert parse(unsaid).layers[0].head_dim == 128


def test_the_window_of_a_qwen_counts_only_when_it_is_turned_on() -> None:
    config = architecture_config("tiny_qwen2") | {"sliding_window": 8, "max_window_layers": 2}
    assert [layer.window for layer in parse(config).layers] == [0, 0, 0]
    assert [layer.window for layer in parse(config | {"use_sliding_window": True}).layers] == [0, 0, 8]
    saved = config | {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}
    assert [layer.attention for layer in parse(saved).layers] == ["global", "sliding", "global"]
    with pytest.raises(InputError, match="sliding_window=None"):
        parse(saved | {"sliding_window": None})


def test_old_llama_configs_leave_sizes_to_be_derived() -> None:
    old = {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 2,
        "num_attention_heads": 9,
        "vocab_size": 100,
        "rope_theta": 5e5,
    }
    model = parse(old)
    assert (model.layers[0].head_dim, model.layers[0].kv_heads, model.layers[0].rope.theta, model.tied) == (64, 9, 5e5, False)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}, "gpt_oss models are not .*MXFP4.*openai_harmony"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
    ],
)
def test_what_is_not_supported_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        parse(architecture_config("tiny_gemma4") | change)


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        ("tiny_gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("tiny_gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("tiny_gemma3", {"hidden_activation": "silu"}, r"hidden_activation='silu'.*Allowed: gelu_pytorch_tanh"),
        ("tiny_gemma3", {"layer_types": ["chunked_attention"] * 4}, r"layer_types\[0\]='chunked_attention'"),
        ("tiny_gemma3", {"sliding_window": None}, "sliding_window=None"),
        ("tiny_qwen2", {"hidden_act": "gelu"}, r"hidden_act='gelu'.*Allowed: silu"),
        ("tiny_qwen3", {"attention_bias": True}, "attention_bias"),
        ("tiny_qwen3", {"layer_types": ["full_attention"]}, "layer_types names 1 layers"),
    ],
)
def test_what_the_newer_families_do_not_support_is_named(name: str, change: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        parse(architecture_config(name) | change)


def test_a_folder_without_config_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        read_architecture(tmp_path)


def test_every_shipped_architecture_reads(tmp_path: Path) -> None:
    assert set(architecture_names()) >= {"tiny_llama", "tiny_gemma4", "gemma4_31b"}
    for name in architecture_names():
        (tmp_path / "config.json").write_text(json.dumps(architecture_config(name)))
        model = read_architecture(tmp_path)
        # Tunix's checkpoint loader tells axes apart by size.
        assert all(model.hidden != layer.head_dim for layer in model.layers)


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        ("tiny_llama", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, r"rope_type='longrope' is not computed"),
        ("tiny_llama", {"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "rope_type='linear' needs factor"),
        ("tiny_llama", {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": "4"}}, "factor='4'"),
        ("tiny_llama", {"rope_parameters": {"rope_theta": 1e4, "factor": 8.0}}, "factor=8.0 is not a setting of rope_type='default'"),
        ("tiny_llama", {"rope_parameters": {"a": 1}}, "a=1 is not a setting of rope_type='default'"),
        ("tiny_llama", {"partial_rotary_factor": 0.5}, "part of the head"),
        ("tiny_llama", {"sliding_window": 64}, "sliding_window=64 is not a key of a llama model"),
        ("tiny_llama", {"attention_dropout": 0.1}, "attention_dropout=0.1"),
        ("tiny_llama", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ("tiny_llama", {"num_experts": 8}, "num_experts=8 is not a key of a llama model"),
        ("tiny_gemma4", {"hidden_activation": "gelu"}, "hidden_activation='gelu'"),
        ("tiny_gemma4", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention='all'"),
        ("tiny_gemma4", {"rope_scaling": {"factor": 8.0}}, "rope_scaling=.* is not a key of a gemma4 model"),
        ("tiny_gemma4", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
        (
            "tiny_gemma4",
            {
                "rope_parameters": {
                    "sliding_attention": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
                    "full_attention": {"rope_theta": 1e4},
                }
            },
            "partial_rotary_factor=0.5 with rope_type='default'",
        ),
    ],
)
def test_every_key_that_changes_what_is_computed_is_computed_or_refused(name: str, change: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        parse_architecture(architecture_config(name) | change, "config.json")


def test_a_key_that_nobody_reads_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    config = architecture_config("tiny_llama") | {"my_note": 3, "unsloth_fixed": True, "_name_or_path": "here"}
    for _ in range(2):
        parse_architecture(config, "the config of this test")
    assert [record.getMessage() for record in caplog.records] == [
        "the config of this test: transformers does not read my_note in a llama model, nor does crossmesh."
    ]
