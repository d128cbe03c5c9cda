"""What the JAX model of each family computes, where a config leaves the beaten track, is what transformers computes by its own means.

The families as they come are held against transformers by every test that starts a JAX backend (`models/probe.py`).
"""

import inspect
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, AutoModelForCausalLM, Gemma3TextConfig
from tunix.models.gemma3 import model as gemma3
from tunix.models.qwen3 import model as qwen3

from crossmesh.errors import InputError
from crossmesh.files import read_json, write_json
from crossmesh.hardware.mesh import MeshShape
from crossmesh.models.families.config_keys import FREE
from crossmesh.models.families.registry import check_backend, families, parse_architecture, read_architecture
from crossmesh.models.families.rope import frequencies
from crossmesh.models.jax import tunix_jax
from crossmesh.models.jax.layers_jax import ModelConfig
from crossmesh.models.probe import compare, probe_tokens
from crossmesh.models.targets import all_weights
from crossmesh.models.torch.hf_torch import reference_logits
from crossmesh.models.weights.cut import TOKENS_FILE, write_cut
from crossmesh.models.weights.random_weights import architecture_config, write_random
from crossmesh.verify.exchange.check import tiny_models

pytestmark = pytest.mark.integration
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in tiny_models()),
    # As many key heads as heads, which Tunix fuses with the queries.
    ("tiny_gemma3", {"num_key_value_heads": 8, "final_logit_softcapping": 5.0, "rms_norm_eps": 1e-3}),
    ("tiny_qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "tie_word_embeddings": True}),
    ("tiny_gemma3", {"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 8.0}}}),
    (
        "tiny_gemma4",
        {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
                "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e6, "factor": 4.0},
            }
        },
    ),
    (
        "tiny_llama",
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "rope_parameters": None,
            "rope_theta": 500_000.0,
        },
    ),
    ("tiny_mistral", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}}),
    ("tiny_qwen3", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2, "tie_word_embeddings": False}),
    (
        "tiny_gemma2",
        {
            "attn_logit_softcapping": None,
            "num_key_value_heads": 8,
            "layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"],
        },
    ),
    ("tiny_qwen3_moe", {"norm_topk_prob": False, "num_experts_per_tok": 3, "tie_word_embeddings": True}),
]


def write_variant(name: str, change: dict[str, Any], folder: Path) -> None:
    write_json(folder / "config.json", architecture_config(name) | change)
    random = np.random.default_rng(0)
    shapes = {name: shape for weight in all_weights(read_architecture(folder)) for name, shape in weight.stored_shapes.items()}
    arrays = {
        one: (random.normal(size=shape) * (shape[1] ** -0.5 if len(shape) == 2 else 0.5)).astype(np.float32)
        for one, shape in shapes.items()
    }
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.full
@pytest.mark.parametrize(("name", "change"), VARIANTS, ids=[name for name, _ in VARIANTS])
def test_variants_of_a_family_compute_what_transformers_computes(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    write_variant(name, change, tmp_path)
    tokens = probe_tokens(512)
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
        expected = model(input_ids=torch.from_numpy(tokens).long(), use_cache=False).logits.numpy()
    positions = np.ascontiguousarray(np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape))
    assert compare(reference_logits(tmp_path, tokens, positions, np.ones_like(tokens)), expected).passed

    assert compare(jax_logits(tmp_path, tokens), expected).relative < 1e-5


def jax_logits(folder: Path, tokens: np.ndarray) -> np.ndarray:
    structure = tunix_jax.build(read_architecture(folder), ModelConfig())
    arrays = tunix_jax.load_weights(structure, folder, tunix_jax.device_mesh(MeshShape(1, 1, 1)))
    positions = np.ascontiguousarray(np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape))
    return np.asarray(jax.jit(lambda *values: tunix_jax.all_logits(structure, *values))(*arrays, tokens, positions, np.ones_like(tokens)))


CUTS = tuple(sorted(tiny_models()))


@pytest.mark.parametrize("name", [CUTS[0], *(pytest.param(name, marks=pytest.mark.full) for name in CUTS[1:])])
def test_a_cut_computes_what_transformers_computes_and_tells_another_activation(name: str, tmp_path: Path) -> None:
    """As the probe of a large model does it: `cut.py`, then both frameworks."""
    model, folder = tmp_path / "model", tmp_path / "cut"
    model.mkdir()
    folder.mkdir()
    write_random(f"{name}@0", model)
    write_cut(model, read_architecture(model), folder)
    tokens = np.load(folder / TOKENS_FILE)
    positions = np.ascontiguousarray(np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape))
    right = reference_logits(folder, tokens, positions, np.ones_like(tokens))
    assert compare(jax_logits(folder, tokens), right).relative < 1e-5
    config = read_json(folder / "config.json")
    key = "hidden_activation" if "gemma" in name else "hidden_act"
    write_json(folder / "config.json", {**config, key: "gelu"})  # Of Gemma it was the tanh form, which is closest to this.
    with torch.inference_mode():
        other = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        wrong = other(input_ids=torch.from_numpy(tokens).long(), use_cache=False).logits.numpy()
    assert not compare(right, wrong).passed


def test_what_only_torch_computes_is_refused_on_jax() -> None:
    with pytest.raises(InputError, match="tie_word_embeddings=false"):
        tunix_jax.build(parse_architecture(architecture_config("tiny_gemma3") | {"tie_word_embeddings": False}, "x"), ModelConfig())
    with pytest.raises(InputError, match=r"rms_norm_eps=0\.001.*Use backend=torch"):
        check_backend(parse_architecture(architecture_config("tiny_gemma4") | {"rms_norm_eps": 1e-3}, "x"), "jax")


ROTATIONS: list[tuple[str, dict[str, Any]]] = [
    ("tiny_llama", {"rope_type": "linear", "factor": 4.0}),
    ("tiny_llama", {"rope_type": "dynamic", "factor": 4.0}),
    (
        "tiny_llama",
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    ),
    ("tiny_qwen2", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}),
    ("tiny_qwen3", {"type": "yarn", "factor": 2.0, "beta_fast": 16, "beta_slow": 2, "mscale": 1.0, "mscale_all_dim": 0.5}),
    ("tiny_mistral", {"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.3, "original_max_position_embeddings": 16}),
    ("tiny_mistral", {"rope_type": "yarn", "factor": 8.0, "truncate": False, "original_max_position_embeddings": 16}),
]


@pytest.mark.parametrize(("name", "rope"), ROTATIONS, ids=lambda one: one if isinstance(one, str) else next(iter(one.values())))
@pytest.mark.parametrize("old", [False, True])
def test_every_rotation_is_that_of_transformers(name: str, rope: dict[str, Any], old: bool, tmp_path: Path) -> None:
    """Frequencies and scaling of transformers' own module, whether the config says it in the spelling of transformers 4 or 5."""
    given = architecture_config(name)
    theta = given["rope_parameters"]["rope_theta"]
    changed = {key: value for key, value in given.items() if key != "rope_parameters"}
    changed |= {"rope_scaling": rope, "rope_theta": theta} if old else {"rope_parameters": {**rope, "rope_theta": theta}}
    write_json(tmp_path / "config.json", changed)
    config = AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        rotary = AutoModel.from_config(config).rotary_emb
    with torch.device("cpu"):
        rotary = type(rotary)(config)
    ours, scaling = frequencies(read_architecture(tmp_path).layers[0].rope, rotary.inv_freq.numel() * 2)
    np.testing.assert_allclose(ours, rotary.inv_freq.numpy(), rtol=1e-6)
    assert scaling == pytest.approx(rotary.attention_scaling, rel=1e-9)


def test_every_key_of_every_familys_config_is_computed_fixed_or_free() -> None:
    for family in families().values():
        keys = family.keys
        assert not keys.computed & keys.fixed.keys()
        assert not (keys.computed | keys.fixed.keys()) & FREE.keys(), family.name
        for one in (CONFIG_MAPPING[kind] for kind in family.model_types):
            names = {field.name for field in fields(one)} | one().to_dict().keys()
            assert names - keys.computed - keys.fixed.keys() - FREE.keys() == set(), one


def test_what_a_gemma3_config_leaves_out_is_what_transformers_takes() -> None:
    published, theirs = parse_architecture({"model_type": "gemma3", "text_config": {}}, "x"), Gemma3TextConfig()
    ours = parse_architecture({**theirs.to_dict(), "model_type": "gemma3_text"}, "x")
    assert replace(published, prefix="model.") == ours


def test_tunix_still_differs_from_transformers() -> None:
    """The reasons for `DenseAttention.theta` and for `gemma3/model_jax.py`. When this fails, see which work-around can go."""
    assert "rope_theta" not in inspect.getsource(qwen3.Attention)
    assert "itertools.cycle(GEMMA3_ATTENTION_PATTERN)" in inspect.getsource(gemma3.Gemma3)
    assert "float32" not in inspect.getsource(gemma3.RMSNorm)
    assert "1e-06" in inspect.getsource(gemma3.RMSNorm)


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("tiny_gemma3", {"hidden_activation": "gelu"}),
    ("tiny_llama", {"hidden_act": "gelu"}),
    ("tiny_llama", {"rms_norm_eps": 1e-4}),
    ("tiny_llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 90_000.0}}),
]


@pytest.mark.parametrize(("name", "other"), WRONG, ids=lambda one: one if isinstance(one, str) else next(iter(one)))
def test_the_probes_bound_tells_another_activation_rotation_and_norm(name: str, other: dict[str, Any], tmp_path: Path) -> None:
    """What the right model computes, held against a reference that differs in one key of its config."""
    tokens = probe_tokens(512)
    write_variant(name, {}, tmp_path)
    positions = np.ascontiguousarray(np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape))
    right = reference_logits(tmp_path, tokens, positions, np.ones_like(tokens))
    write_json(tmp_path / "config.json", architecture_config(name) | other)
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
        wrong = model(input_ids=torch.from_numpy(tokens).long(), use_cache=False).logits.numpy()
    assert compare(right, right).passed
    assert not compare(right, wrong).passed
