"""What LoRA is on each module: PEFT's pattern rules and scales, and a pattern that fits nothing is not a silent default."""

import math

import pytest

from crossmesh.config.training import LoraSpec
from crossmesh.errors import InputError
from crossmesh.models.architecture import Architecture
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.lora import by_pattern, largest_rank, lora_modules
from crossmesh.models.weights.random_weights import architecture_config


@pytest.fixture(scope="module")
def llama() -> Architecture:
    return parse_architecture(architecture_config("tiny_llama"), "tiny_llama")


def test_the_first_pattern_that_fits_counts_and_names_end_at_a_dot() -> None:
    modules = ["model.layers.1.self_attn.q_proj", "model.layers.11.self_attn.q_proj", "model.layers.1.mlp.up_proj"]
    assert by_pattern({"layers.1.self_attn.q_proj": 2, "q_proj": 3, "proj": 4}, modules) == {modules[0]: 2, modules[1]: 3}
    assert by_pattern({r".*_proj": 4, "q_proj": 3}, modules) == dict.fromkeys(modules, 4)


def test_ranks_alphas_and_scales_are_of_the_module(llama: Architecture) -> None:
    lora = LoraSpec(rank=4, alpha=8.0, targets=("q", "v", "up"), rank_pattern={"q_proj": 16}, alpha_pattern={r"layers\.0\..*": 3.0})
    modules = {module.target.hf: module for module in lora_modules(lora, llama)}
    q, v, up = (modules[f"model.layers.{place}"] for place in ("0.self_attn.q_proj", "1.self_attn.v_proj", "0.mlp.up_proj"))
    assert (q.rank, q.alpha, q.scale) == (16, 3.0, 3 / 16)
    assert (v.rank, v.alpha, v.scale) == (4, 8.0, 2.0)
    assert (up.rank, up.scale) == (4, 0.75)
    assert largest_rank(modules.values()) == 16


def test_rank_stabilised_scales_divide_by_the_root_of_the_modules_own_rank(llama: Architecture) -> None:
    modules = lora_modules(LoraSpec(rank=4, alpha=8.0, use_rslora=True, rank_pattern={"k_proj": 9}), llama)
    scales = {module.target.name: module.scale for module in modules}
    assert scales["q"] == 4.0
    assert scales["k"] == 8.0 / math.sqrt(9)


def test_all_weights_have_no_modules(llama: Architecture) -> None:
    assert lora_modules(LoraSpec(rank=0), llama) == ()
    assert largest_rank(()) == 0


@pytest.mark.parametrize("key", ["rank_pattern", "alpha_pattern"])
def test_a_pattern_that_fits_no_adapted_module_is_refused(llama: Architecture, key: str) -> None:
    with pytest.raises(InputError, match=rf"lora\.{key} names 'up_proj', which fits no adapted module.*q_proj"):
        lora_modules(LoraSpec(targets=("q",), **{key: {"up_proj": 2}}), llama)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rank_pattern": {"q_proj": 0}}, r"lora\.rank_pattern\.q_proj=0 .*positive"),
        ({"alpha_pattern": {"(q_proj": 1.0}}, r"not a regular expression"),
        ({"rank": 0, "rank_pattern": {"q_proj": 2}}, r"belongs to an adapter"),
        ({"adapter": "mine", "alpha_pattern": {"q_proj": 2.0}}, r"has its own"),
        ({"rank": 0, "adapter": "mine"}, r"lora\.adapter='mine' .*trains all weights"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        LoraSpec(**changes)
