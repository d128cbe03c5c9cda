"""PEFT <-> Qwix layouts: a round trip keeps every bit, and the numbers mean the same product."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from crossmesh.adapters.convert import qwix_paths, to_peft, to_qwix
from crossmesh.adapters.initial import lora_names
from crossmesh.config.training import LORA_TARGETS
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.targets import Target, expand_targets

GEMMA4 = parse_architecture(
    {
        "model_type": "gemma4_text",
        "num_hidden_layers": 6,
        "hidden_size": 12,
        "intermediate_size": 20,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "global_head_dim": 8,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "vocab_size": 16,
        "hidden_size_per_layer_input": 0,
    },
    "test",
)
LLAMA = parse_architecture(
    {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": 12,
        "intermediate_size": 20,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "vocab_size": 16,
    },
    "test",
)
TARGETS = {target.hf: target for architecture in (GEMMA4, LLAMA) for target in expand_targets(architecture, LORA_TARGETS)}


def floats(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    # Any bit pattern: signed zeros, subnormals and NaN payloads must survive too.
    return hnp.arrays(np.uint32, shape).map(lambda bits: bits.view(np.float32))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), hf=st.sampled_from(sorted(TARGETS)), rank=st.integers(1, 5))
def test_round_trip_keeps_every_bit(data: st.DataObject, hf: str, rank: int) -> None:
    target = TARGETS[hf]
    a_name, b_name = lora_names(hf)
    arrays = {a_name: data.draw(floats((rank, target.in_features))), b_name: data.draw(floats((target.out_features, rank)))}
    back = to_peft(to_qwix(arrays, (target,)), (target,))
    assert {name: (array.shape, array.tobytes()) for name, array in back.items()} == {
        name: (array.shape, np.ascontiguousarray(array).tobytes()) for name, array in arrays.items()
    }


@pytest.mark.parametrize("architecture", [GEMMA4, LLAMA], ids=["gemma4", "llama"])
def test_both_layouts_make_the_same_change_of_the_weight(architecture: object) -> None:
    rng = np.random.default_rng(0)
    for target in expand_targets(architecture, LORA_TARGETS):
        arrays = _random(target, rng)
        a, b = (arrays[name] for name in lora_names(target.hf))
        qwix = to_qwix(arrays, (target,))
        qa, qb = (qwix[path] for path in qwix_paths(target))
        # Qwix: contract the rank, [*in, *out]. The Tunix weight has the same axes, permuted from out + in.
        product = np.tensordot(qa, qb, axes=1)
        split = len(target.weight.in_shape)
        product = product.transpose(*range(split, product.ndim), *range(split)).transpose(target.weight.axes)
        expected = (b @ a).reshape(target.weight.out_shape + target.weight.in_shape).transpose(target.weight.axes)
        assert product.shape == target.weight.tunix_shape
        np.testing.assert_allclose(product, expected, rtol=1e-5, atol=1e-6)


def _random(target: Target, rng: np.random.Generator, rank: int = 3) -> dict[str, np.ndarray]:
    shapes = ((rank, target.in_features), (target.out_features, rank))
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in zip(lora_names(target.hf), shapes, strict=True)}


def test_missing_extra_and_misshapen_arrays_are_named() -> None:
    first, second = expand_targets(LLAMA, ("q", "down"))
    arrays = _random(first, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"down_proj.lora_A.weight is missing"):
        to_qwix(arrays, (first, second))
    with pytest.raises(ValueError, match="belong to no target"):
        to_qwix({**arrays, **_random(second, np.random.default_rng(0))}, (first,))
    name = lora_names(first.hf)[0]
    with pytest.raises(ValueError, match=r"has shape \(12, 3\)"):
        to_qwix({**arrays, name: arrays[name].T}, (first,))
