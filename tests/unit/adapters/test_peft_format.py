"""PEFT folders: bit-exact both ways, never overwritten by another adapter, and nothing but plain LoRA is read."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoint_folders import write_peft
from crossmesh.adapters.initial import FloatArray, lora_names
from crossmesh.adapters.peft_format import (
    adapter_digest,
    check_modules,
    open_adapter,
    read_adapter,
    serving_form,
    write_adapter,
    write_serving_adapter,
)
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.models.architecture import Architecture
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.targets import expand_targets
from crossmesh.models.weights.random_weights import architecture_config


@pytest.fixture
def architecture() -> Architecture:
    return parse_architecture(architecture_config("tiny_gemma4"), "tiny_gemma4")


@pytest.fixture
def arrays(architecture: Architecture) -> dict[str, FloatArray]:
    random = np.random.default_rng(0)
    values = {}
    for target in expand_targets(architecture, ("q", "k", "v", "down")):
        name_a, name_b = lora_names(target.hf)
        values[name_a] = random.standard_normal((4, target.in_features), dtype=np.float32)
        values[name_b] = random.standard_normal((target.out_features, 4), dtype=np.float32)
    return values


def modules(arrays: dict[str, FloatArray]) -> list[str]:
    return sorted({name.removeprefix("base_model.model.").rsplit(".lora_", 1)[0] for name in arrays})


def write(folder: Path, arrays: dict[str, FloatArray], **changes: Any) -> str:
    settings: dict[str, Any] = {
        "rank": 4,
        "alpha": 8.0,
        "dropout": 0.05,
        "base_model": "random://tiny_gemma4@0",
        "modules": modules(arrays),
    }
    return write_adapter(folder, arrays, **settings | changes)


def edit_config(folder: Path, changes: dict[str, Any]) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_the_same_adapter_is_the_same_bytes(tmp_path: Path, arrays: dict[str, FloatArray]) -> None:
    digests = {write(tmp_path / str(number), arrays, base_digest="a" * 64) for number in range(12)}
    assert len(digests) == 1
    assert read_adapter(tmp_path / "0")[0].keys() == arrays.keys()
    assert open_adapter(tmp_path / "0").base_digest == "a" * 64


def test_what_was_written_is_read_back_bit_for_bit(tmp_path: Path, arrays: dict[str, FloatArray]) -> None:
    digest = write(tmp_path / "a", arrays)
    read, config = read_adapter(tmp_path / "a")
    assert read.keys() == arrays.keys()
    assert all(np.array_equal(read[name], arrays[name]) for name in arrays)
    assert (config.rank, config.alpha, config.dropout, config.modules) == (4, 8.0, 0.05, tuple(modules(arrays)))
    assert "model.layers.5.self_attn.v_proj" not in config.modules
    assert digest == adapter_digest(tmp_path / "a") == write(tmp_path / "b", arrays)


def test_an_adapter_says_which_base_it_belongs_to_and_keeps_saying_so(
    tmp_path: Path, arrays: dict[str, FloatArray], architecture: Architecture
) -> None:
    assert write(tmp_path / "a", arrays, base_digest="abc") != write(tmp_path / "b", arrays)
    write_serving_adapter(tmp_path / "a", tmp_path / "serve", architecture)
    assert [open_adapter(tmp_path / name).base_digest for name in ("a", "b", "serve")] == ["abc", "", "abc"]


def test_the_digest_knows_alpha_and_every_bit(tmp_path: Path, arrays: dict[str, FloatArray]) -> None:
    digest = write(tmp_path / "a", arrays)
    assert write(tmp_path / "b", arrays, alpha=16.0) != digest
    name = next(iter(arrays))
    changed = arrays | {name: np.nextafter(arrays[name], np.float32(np.inf), dtype=np.float32)}
    assert write(tmp_path / "c", changed) != digest


def test_writing_again_is_allowed_only_for_the_same_adapter(tmp_path: Path, arrays: dict[str, FloatArray]) -> None:
    digest = write(tmp_path / "a", arrays)
    assert write(tmp_path / "a", arrays) == digest
    with pytest.raises(InputError, match="already holds another adapter"):
        write(tmp_path / "a", arrays, alpha=1.0)
    assert adapter_digest(tmp_path / "a") == digest


def test_arrays_must_fit_modules_and_rank_and_be_finite(tmp_path: Path, arrays: dict[str, FloatArray]) -> None:
    with pytest.raises(InputError, match=r"1 arrays are missing"):
        write(tmp_path / "a", {name: arrays[name] for name in list(arrays)[1:]}, modules=modules(arrays))
    with pytest.raises(InputError, match="With rank 8"):
        write(tmp_path / "a", arrays, rank=8)
    name = next(iter(arrays))
    diverged = arrays | {name: np.full_like(arrays[name], np.nan)}
    with pytest.raises(CrossmeshError, match="not finite"):
        write(tmp_path / "a", diverged)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("key", "value", "advice"),
    [
        ("peft_type", "IA3", "Only LoRA"),
        ("use_dora", True, "DoRA also rescales .*merge_and_unload"),
        ("lora_bias", True, "B has a bias"),
        ("bias", "all", "biases of the base"),
        ("modules_to_save", ["lm_head"], "whole modules"),
        ("target_parameters", ["mlp.experts.down_proj"], "experts"),
        ("init_lora_weights", "pissa", "path_initial_model_for_weight_conversion"),
        ("layer_replication", [[0, 4]], "repeats layers"),
        ("kasa_config", {"r": 4}, "singular values"),
        ("r", 0, "positive whole number"),
        ("rank_pattern", {"q_proj": 0}, "positive whole number"),
        ("alpha_pattern", {"q_proj": "much"}, "Allowed: a number"),
        ("alpha_pattern", {"(": 4}, "regular expression"),
    ],
)
def test_what_is_not_lora_as_we_know_it_is_refused_by_name_and_with_advice(
    tmp_path: Path, arrays: dict[str, FloatArray], key: str, value: object, advice: str
) -> None:
    write(tmp_path / "a", arrays)
    edit_config(tmp_path / "a", {key: value})
    with pytest.raises(InputError, match=advice) as caught:
        read_adapter(tmp_path / "a")
    assert key in str(caught.value) or "patterns" in str(caught.value)


@pytest.mark.parametrize("init", [True, False, "gaussian", "eva", "orthogonal"])
def test_initial_values_that_leave_the_base_alone_are_plain_lora(tmp_path: Path, arrays: dict[str, FloatArray], init: object) -> None:
    write(tmp_path / "a", arrays)
    edit_config(tmp_path / "a", {"init_lora_weights": init})
    assert read_adapter(tmp_path / "a")[1].scale(modules(arrays)[0]) == 2.0


def test_ranks_and_alphas_by_module_and_rslora_give_each_module_its_scale(tmp_path: Path) -> None:
    q, k, up = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", "model.layers.10.mlp.up_proj"
    ranks = {q: 4, k: 9, up: 4}
    pairs = {module: (np.ones((rank, 6), np.float32), np.ones((5, rank), np.float32)) for module, rank in ranks.items()}
    # Keys are regular expressions that end a name; the first that fits counts, and one that ends within a word does not.
    patterns = {"rank_pattern": {"k_proj": 9, "roj": 2}, "alpha_pattern": {r"layers\.1\.mlp\.up_proj": 100, "self_attn.*": 6, "q_proj": 1}}
    write_peft(tmp_path / "plain", pairs, r=4, lora_alpha=8, **patterns)
    config = open_adapter(tmp_path / "plain").config
    assert (config.scale(q), config.scale(k), config.scale(up)) == (6 / 4, 6 / 9, 8 / 4)
    assert (config.ranks, config.alphas) == ({k: 9}, {q: 6.0, k: 6.0})
    write_peft(tmp_path / "stabilised", pairs, r=4, lora_alpha=8, use_rslora=True, **patterns)
    config = open_adapter(tmp_path / "stabilised").config
    assert (config.scale(q), config.scale(k), config.scale(up)) == (6 / 2, 6 / 3, 8 / 2)
    write_peft(tmp_path / "wrong", pairs, r=4, lora_alpha=8)
    with pytest.raises(InputError, match=r"k_proj has A \(9, 6\) and B \(5, 9\)\. With rank 4"):
        open_adapter(tmp_path / "wrong")


def test_settings_left_out_are_those_of_peft(tmp_path: Path) -> None:
    write_peft(tmp_path / "a", {"model.layers.0.mlp.up_proj": (np.ones((8, 6), np.float32), np.ones((5, 8), np.float32))})
    (tmp_path / "a" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    config = open_adapter(tmp_path / "a").config
    assert (config.rank, config.alpha, config.dropout, config.rslora) == (8, 8.0, 0.0, False)


def test_pickles_are_refused(tmp_path: Path, arrays: dict[str, FloatArray]) -> None:
    write(tmp_path / "a", arrays)
    (tmp_path / "a" / "adapter_model.safetensors").rename(tmp_path / "a" / "adapter_model.bin")
    with pytest.raises(InputError, match="pickle"):
        read_adapter(tmp_path / "a")
    with pytest.raises(InputError, match="no adapter_model"):
        adapter_digest(tmp_path / "a")


def test_damage_and_foreign_arrays_are_named(tmp_path: Path, arrays: dict[str, FloatArray]) -> None:
    write(tmp_path / "a", arrays)
    path = tmp_path / "a" / "adapter_model.safetensors"
    save_file(load_file(path) | {"base_model.model.model.embed_tokens.lora_embedding_A": np.ones((4, 4), np.float32)}, path)
    with pytest.raises(InputError, match="lora_embedding_A"):
        read_adapter(tmp_path / "a")
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(InputError, match="damaged"):
        read_adapter(tmp_path / "a")


def test_half_precision_adapters_are_read_as_float32(tmp_path: Path) -> None:
    name_a, name_b = lora_names("model.layers.0.mlp.up_proj")
    write(tmp_path / "a", {name_a: np.full((4, 8), 0.5, np.float32), name_b: np.full((6, 4), 0.25, np.float32)})
    path = tmp_path / "a" / "adapter_model.safetensors"
    save_file({name: array.astype(ml_dtypes.bfloat16) for name, array in load_file(path).items()}, path)
    arrays, _ = read_adapter(tmp_path / "a")
    assert arrays[name_a].dtype == np.float32
    assert (arrays[name_a] == 0.5).all()


def test_the_serving_form_adds_v_where_k_is_also_v(tmp_path: Path, arrays: dict[str, FloatArray], architecture: Architecture) -> None:
    served = serving_form(arrays, architecture)
    key, value = lora_names("model.layers.5.self_attn.k_proj"), lora_names("model.layers.5.self_attn.v_proj")
    assert served.keys() - arrays.keys() == set(value)
    assert all(np.array_equal(served[new], arrays[old]) for new, old in zip(value, key, strict=True))
    write(tmp_path / "a", arrays)
    write_serving_adapter(tmp_path / "a", tmp_path / "serve", architecture)
    config = json.loads((tmp_path / "serve" / "adapter_config.json").read_text())
    assert "model.layers.5.self_attn.v_proj" in config["target_modules"]
    shutil.rmtree(tmp_path / "serve")
    edit_config(tmp_path / "a", {"alpha_pattern": {"layers.5.self_attn.k_proj": 2}, "use_rslora": True})
    write_serving_adapter(tmp_path / "a", tmp_path / "serve", architecture)
    _, config = read_adapter(tmp_path / "serve")
    assert config.scale("model.layers.5.self_attn.v_proj") == config.scale("model.layers.5.self_attn.k_proj") == 1.0
    assert config.scale("model.layers.0.self_attn.k_proj") == 4.0
    # Without K among the targets there is nothing to copy.
    assert serving_form({name: array for name, array in arrays.items() if "k_proj" not in name}, architecture).keys() < arrays.keys()


def test_an_adapter_of_another_base_is_refused_by_module_and_by_size(
    tmp_path: Path, arrays: dict[str, FloatArray], architecture: Architecture
) -> None:
    write(tmp_path / "a", arrays)
    check_modules(open_adapter(tmp_path / "a"), architecture)
    llama = parse_architecture(architecture_config("tiny_llama"), "tiny_llama")
    with pytest.raises(InputError, match=r"/a adapts model\.layers\..*another base"):
        check_modules(open_adapter(tmp_path / "a"), llama)
    name_a, name_b = lora_names("model.layers.0.self_attn.q_proj")
    write(tmp_path / "head", {name.replace("model.layers.0.self_attn.q_proj", "lm_head"): arrays[name] for name in (name_a, name_b)})
    with pytest.raises(InputError, match=r"adapts lm_head, which .*q, k, v, o, gate, up, down"):
        check_modules(open_adapter(tmp_path / "head"), replace(architecture, tied=False))
    write(tmp_path / "narrow", {name_a: arrays[name_a][:, :-1], name_b: arrays[name_b]}, modules=["model.layers.0.self_attn.q_proj"])
    with pytest.raises(InputError, match=r"q_proj with 127 inputs and 256 .* in this model it has 128 and 256"):
        check_modules(open_adapter(tmp_path / "narrow"), architecture)
    with pytest.raises(InputError, match="another base"):
        write_serving_adapter(tmp_path / "a", tmp_path / "serve", llama)
    assert not (tmp_path / "serve").exists()


@pytest.mark.parametrize(
    ("name", "module", "said"),
    [
        ("tiny_gemma4_moe", "model.layers.0.experts.gate_up_proj", "experts are not adapted.*fused in one tensor.*dense branch"),
        ("tiny_gemma4_moe", "model.layers.0.experts.3.down_proj", "experts are not adapted"),
        ("tiny_gemma4_moe", "model.layers.0.router.proj", "which no engine adapts here"),
        ("tiny_qwen3_moe", "model.layers.0.mlp.experts.3.down_proj", "experts are not adapted"),
        ("tiny_qwen3_moe", "model.layers.0.mlp.gate", "which no engine adapts here"),
        ("tiny_qwen3_moe", "model.layers.0.mlp.up_proj", "does not have"),
        ("tiny_gemma4_e2b", "model.layers.0.per_layer_input_gate", "which no engine adapts here.*mode=merged"),
        ("tiny_gemma4_e2b", "model.layers.4.self_attn.k_proj", "does not have"),  # Layer 4 uses the keys of layer 3.
        ("tiny_gemma4_e2b", "model.layers.0.input_layernorm", "does not have"),
    ],
)
def test_what_a_model_has_and_nobody_adapts_is_said_so(tmp_path: Path, name: str, module: str, said: str) -> None:
    name_a, name_b = lora_names(module)
    write(tmp_path / "a", {name_a: np.ones((4, 8), np.float32), name_b: np.ones((8, 4), np.float32)})
    with pytest.raises(InputError, match=said):
        check_modules(open_adapter(tmp_path / "a"), parse_architecture(architecture_config(name), name))


@pytest.mark.parametrize("text", ["{bro", "[]", "5"])
def test_settings_that_are_no_json_object_are_named(tmp_path: Path, arrays: dict[str, FloatArray], text: str) -> None:
    write(tmp_path / "a", arrays)
    (tmp_path / "a" / "adapter_config.json").write_text(text)
    with pytest.raises(InputError, match=r"adapter_config\.json cannot be read"):
        read_adapter(tmp_path / "a")
