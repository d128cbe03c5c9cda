"""Initial LoRA values: PEFT's distribution, and a function of seed and module name alone."""

import numpy as np

from crossmesh.adapters.initial import initial_lora, lora_names
from crossmesh.models.architecture import Weight
from crossmesh.models.lora import LoraModule
from crossmesh.models.targets import Target


def module(name: str, out: int, rank: int) -> LoraModule:
    return LoraModule(Target(0, name, Weight(f"model.layers.0.self_attn.{name}_proj", "weight", (), "w", (out,), (576,))), rank, 8.0)


Q, K = module("q", 576, 8), module("k", 192, 16)


def test_each_module_has_its_own_values_whatever_stands_beside_it() -> None:
    both, reverse, alone = initial_lora([Q, K], 0), initial_lora([K, Q], 0), initial_lora([K], 0)
    name_a, name_b = lora_names(K.target.hf)
    assert name_a == "base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight"
    for other in (reverse, alone):
        assert np.array_equal(both[name_a], other[name_a])
    assert not np.array_equal(both[name_a][:8], both[lora_names(Q.target.hf)[0]])
    assert not np.array_equal(both[name_a], initial_lora([K], 1)[name_a])
    assert both[name_a].shape == (16, 576)
    assert both[lora_names(Q.target.hf)[0]].shape == (8, 576)
    assert both[name_b].shape == (192, 16)


def test_the_distribution_is_kaiming_uniform_and_b_is_zero() -> None:
    arrays = initial_lora([module("q", 576, 64)], 3)
    a, b = (arrays[name] for name in lora_names(Q.target.hf))
    assert a.dtype == b.dtype == np.float32
    assert not b.any()
    bound = 1 / 24
    assert 0.999 * bound < np.abs(a).max() <= bound
    assert abs(a.std() - bound / np.sqrt(3)) < 0.01 * bound
