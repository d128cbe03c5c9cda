"""Adapters as they are found: older names, nulls, copies of the base's weights, configs that name other modules than the arrays."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoint_folders import write_peft
from crossmesh.adapters.init_adapter import adapted_modules, first_values
from crossmesh.adapters.initial import PEFT_PREFIX
from crossmesh.adapters.merge import match_modules, read_base_config
from crossmesh.adapters.peft_format import open_adapter, write_serving_adapter
from crossmesh.config.training import LoraSpec
from crossmesh.errors import InputError
from crossmesh.models.families.registry import parse_architecture, read_architecture
from crossmesh.models.weights.checkpoints import open_checkpoint
from crossmesh.models.weights.random_weights import architecture_config, write_random
from crossmesh.models.weights.stores import LocalStore
from crossmesh.serve.adapters import ServedBase

Q, K = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"


def pair(out: int = 256, into: int = 128) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    return random.normal(size=(8, into)).astype(np.float32), random.normal(size=(out, 8)).astype(np.float32)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    write_random("tiny_llama@0", folder)
    return folder


def add_array(adapter: Path, name: str, array: Any) -> None:
    file = adapter / "adapter_model.safetensors"
    save_file(load_file(file) | {name: array}, file, metadata={"format": "pt"})


def verdicts(adapter: Path, base: Path, tmp_path: Path) -> list[str]:
    """What merging and serving say; empty where they take the adapter."""
    said = []
    served = ServedBase("base", base, "digest", tmp_path / "forms")
    store = LocalStore(base)
    for take in (
        lambda: match_modules(open_adapter(adapter), open_checkpoint(store), read_base_config(store)),
        lambda: served.adapter("a", adapter),
    ):
        try:
            take()
            said.append("")
        except InputError as error:
            said.append(str(error).removeprefix("Adapter 'a': "))
    return said


@pytest.mark.parametrize("old", ["language_model.model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.q_proj"])
def test_older_names_are_served_and_continued_under_the_models_own(old: str, tmp_path: Path) -> None:
    config = {"model_type": "gemma3", "text_config": architecture_config("tiny_gemma3")}
    architecture = parse_architecture(config, "x")
    write_peft(tmp_path / "old", {old: pair()}, rank_pattern={"q_proj": 8}, r=4)
    write_serving_adapter(tmp_path / "old", tmp_path / "served", architecture)
    module = "model.language_model.layers.0.self_attn.q_proj"
    served = open_adapter(tmp_path / "served")
    assert served.config.modules == (module,)
    assert served.config.rank_of(module) == 8
    np.testing.assert_array_equal(served.pair(module)[1], pair()[1])
    modules = adapted_modules(LoraSpec(), tmp_path / "old", architecture)
    assert [one.target.hf for one in modules] == [module]
    assert first_values(LoraSpec(), tmp_path / "old", modules).keys() == {f"{PEFT_PREFIX}{module}.lora_{letter}.weight" for letter in "AB"}


def test_merging_and_serving_say_the_same_of_a_tied_output_projection(base: Path, tmp_path: Path) -> None:
    write_peft(tmp_path / "head", {"lm_head": pair(512)})
    merged, served = verdicts(tmp_path / "head", base, tmp_path)
    assert merged == served
    assert "adapts lm_head, which in this base is the embedding" in merged


def test_null_is_pefts_default(tmp_path: Path) -> None:
    keys = [
        *("lora_dropout", "lora_alpha", "r", "rank_pattern", "alpha_pattern", "use_rslora", "bias", "init_lora_weights", "use_dora"),
        *("peft_type", "fan_in_fan_out", "lora_bias", "base_model_name_or_path", "exclude_modules", "layers_to_transform"),
        *("layers_pattern", "target_modules"),
    ]
    write_peft(tmp_path / "null", {Q: pair()}, **dict.fromkeys(keys))
    config = open_adapter(tmp_path / "null").config
    assert (config.rank, config.alpha, config.dropout, config.rslora, config.base_model) == (8, 8.0, 0.0, False, "")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lora_dropout", "much"), ("lora_dropout", [0.1]), ("lora_dropout", 2), ("rank_pattern", ["q_proj"]), ("alpha_pattern", 3),
        ("use_rslora", "yes"), ("target_modules", 5), ("target_modules", "(["), ("layers_to_transform", "all"), ("exclude_modules", {}),
    ],
)  # fmt: skip
def test_a_malformed_value_is_one_error_that_names_it(key: str, value: Any, tmp_path: Path) -> None:
    write_peft(tmp_path / "bad", {Q: pair()}, **{key: value})
    with pytest.raises(InputError, match=key):
        open_adapter(tmp_path / "bad")


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "lm_head.weight", "lm_head.base_layer.weight"])
def test_a_copy_of_the_bases_weight_is_dropped_where_it_is_the_bases(name: str, base: Path, tmp_path: Path) -> None:
    write_peft(tmp_path / "copy", {Q: pair()})
    own = load_file(base / "model.safetensors")["model.embed_tokens.weight"]
    add_array(tmp_path / "copy", PEFT_PREFIX + name, own)
    assert verdicts(tmp_path / "copy", base, tmp_path) == ["", ""]
    changed = own.copy()
    changed[-1, -1] += 1e-3
    add_array(tmp_path / "copy", PEFT_PREFIX + name, changed)
    merged, served = verdicts(tmp_path / "copy", base, tmp_path)
    assert merged == served
    assert "was trained or resized" in merged
    assert "merge_and_unload" in merged


@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": ["q_proj"]},
        {"target_modules": r".*\.q_proj"},
        {"target_modules": ["q_proj", "k_proj"], "exclude_modules": ["k_proj"]},
        {"target_modules": ["q_proj", "k_proj"], "layers_to_transform": [1]},
        {"target_modules": [Q]},
    ],
)
def test_arrays_that_the_config_leaves_out_are_refused(config: dict[str, Any], tmp_path: Path) -> None:
    write_peft(tmp_path / "more", {Q: pair(), K: pair(128)}, **config)
    with pytest.raises(InputError, match=r"holds arrays of model\.layers\.0\.self_attn\.[kq]_proj, which its target_modules"):
        open_adapter(tmp_path / "more")


@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": ["q_proj", "k_proj"]},
        {"target_modules": r".*\.[qk]_proj"},
        {"target_modules": "all-linear"},
        {"target_modules": ["q_proj", "k_proj"], "layers_to_transform": 0},
        {"target_modules": ["q_proj", "k_proj"], "exclude_modules": ["lm_head"]},
        {"target_modules": ["q_proj", "k_proj"], "layers_to_transform": [0], "layers_pattern": "layers"},
    ],
)
def test_arrays_that_the_config_names_are_taken(config: dict[str, Any], tmp_path: Path) -> None:
    write_peft(tmp_path / "named", {Q: pair(), K: pair(128)}, **config)
    assert open_adapter(tmp_path / "named").config.modules == (K, Q)


def test_a_named_module_without_arrays_is_refused(tmp_path: Path) -> None:
    write_peft(tmp_path / "fewer", {Q: pair()}, target_modules=["q_proj", "v_proj"])
    with pytest.raises(InputError, match=r"target_modules names 'v_proj', of which .* holds no arrays"):
        open_adapter(tmp_path / "fewer")


def test_the_base_of_these_tests_ties_its_output(base: Path) -> None:
    assert read_architecture(base).tied
    assert json.loads((base / "config.json").read_text())["tie_word_embeddings"]
