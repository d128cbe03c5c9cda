"""Initial LoRA values: PEFT's distribution, and a function of seed and module name alone."""

import numpy as np

from crossmesh.adapters.initial import LoraShape, initial_lora, lora_names

Q, K = LoraShape("model.layers.0.self_attn.q_proj", 576, 576), LoraShape("model.layers.0.self_attn.k_proj", 576, 192)


def test_each_module_has_its_own_values_whatever_stands_beside_it() -> None:
    both, reverse, alone = initial_lora([Q, K], 16, 0), initial_lora([K, Q], 16, 0), initial_lora([K], 16, 0)
    name_a, name_b = lora_names(K.hf)
    assert name_a == "base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight"
    for other in (reverse, alone):
        assert np.array_equal(both[name_a], other[name_a])
    assert not np.array_equal(both[name_a], both[lora_names(Q.hf)[0]])
    assert not np.array_equal(both[name_a], initial_lora([K], 16, 1)[name_a])
    assert both[name_a].shape == (16, 576)
    assert both[name_b].shape == (192, 16)


def test_the_distribution_is_kaiming_uniform_and_b_is_zero() -> None:
    arrays = initial_lora([Q], 64, 3)
    a, b = (arrays[name] for name in lora_names(Q.hf))
    assert a.dtype == b.dtype == np.float32
    assert not b.any()
    bound = 1 / 24
    assert 0.999 * bound < np.abs(a).max() <= bound
    assert abs(a.std() - bound / np.sqrt(3)) < 0.01 * bound
