"""The exchange format over random small models of every family: a round trip keeps every bit, every rank and every alpha.

Sizes are drawn around each shipped tiny architecture, so that a family that comes later is covered by the file it ships.
"""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from crossmesh.adapters.convert import to_peft, to_qwix
from crossmesh.adapters.init_adapter import adapted_modules
from crossmesh.adapters.initial import FloatArray, lora_names
from crossmesh.adapters.peft_config import AdapterConfig
from crossmesh.adapters.peft_format import read_adapter, serving_form, store_adapter
from crossmesh.config.training import LORA_TARGETS, LoraSpec
from crossmesh.models.architecture import Architecture
from crossmesh.models.families.registry import families, family_of, parse_architecture
from crossmesh.models.lora import LoraModule, lora_modules, targets_of
from crossmesh.models.targets import projections
from crossmesh.models.weights.random_weights import architecture_config, architecture_names

TINY = [name for name in architecture_names() if name.startswith("tiny_")]


def test_every_family_ships_a_tiny_architecture() -> None:
    shipped = {parse_architecture(architecture_config(name), name).family for name in TINY}
    assert shipped == set(families())


@st.composite
def architectures(draw: st.DrawFn, name: str) -> Architecture:
    """The architecture `name` with other widths, heads and head sizes, and where its layers are of one kind another number of them."""
    config = architecture_config(name)
    kv_heads = draw(st.integers(1, 3))
    sizes: dict[str, Any] = {
        "hidden_size": draw(st.integers(3, 17)),
        "intermediate_size": draw(st.integers(1, 9)),
        "num_attention_heads": kv_heads * draw(st.integers(1, 3)),
        "num_key_value_heads": kv_heads,
        "head_dim": 2 * draw(st.integers(1, 4)),
        "vocab_size": 16,
    }
    if "global_head_dim" in config:
        sizes["global_head_dim"] = 2 * draw(st.integers(1, 4))
    if "num_global_key_value_heads" in config:
        sizes["num_global_key_value_heads"] = draw(st.sampled_from([1, kv_heads]))
    if "vocab_size_per_layer_input" in config:
        sizes["vocab_size_per_layer_input"] = 16
    if "layer_types" not in config:
        sizes["num_hidden_layers"] = draw(st.integers(1, 3))
    if "head_dim" not in family_of(parse_architecture(config, name)).keys.computed:
        sizes["hidden_size"] = sizes["num_attention_heads"] * sizes.pop("head_dim")
    return parse_architecture({**config, **sizes}, name)


@st.composite
def loras(draw: st.DrawFn) -> LoraSpec:
    """Targets, and ranks and alphas of their own for some of them."""
    targets = draw(st.lists(st.sampled_from(LORA_TARGETS), min_size=1, unique=True))
    with_k = tuple(targets if "k" in targets or set(targets) != {"v"} else [*targets, "k"])  # V alone may have nothing to adapt.
    some = st.sampled_from([f"{name}_proj" for name in with_k if name != "v"])
    return LoraSpec(
        rank=draw(st.integers(1, 5)),
        alpha=draw(st.sampled_from([1.0, 0.1, 16.0])),
        targets=with_k,
        use_rslora=draw(st.booleans()),
        rank_pattern=draw(st.dictionaries(some, st.integers(1, 6), max_size=2)),
        alpha_pattern=draw(st.dictionaries(some, st.sampled_from([3.0, 0.7]), max_size=2)),
    )


def within(lora: LoraSpec, architecture: Architecture) -> LoraSpec:
    """`lora` without targets that no layer has: feed-forward networks of a model whose layers have experts in their place."""
    known = {name for index in range(len(architecture.layers)) for name in projections(architecture, index)}
    targets = tuple(name for name in lora.targets if name in known) or ("q",)
    modules = {f"{name}_proj" for name in targets}
    ranks, alphas = ({key: one for key, one in pattern.items() if key in modules} for pattern in (lora.rank_pattern, lora.alpha_pattern))
    return replace(lora, targets=targets, rank_pattern=ranks, alpha_pattern=alphas)


def arrays_of(modules: tuple[LoraModule, ...], seed: int, *, finite: bool) -> dict[str, FloatArray]:
    """Any bit patterns: signed zeros, subnormals, and unless `finite` infinities and NaN payloads."""
    random = np.random.default_rng(seed)
    found = {}
    for module in modules:
        shapes = ((module.rank, module.target.in_features), (module.target.out_features, module.rank))
        for name, shape in zip(lora_names(module.target.hf), shapes, strict=True):
            bits = random.integers(0, 1 << 32, shape, np.uint32)
            array = bits.view(np.float32)
            found[name] = np.where(np.isfinite(array), array, np.float32(-0.0)) if finite else array
    return found


def bits(arrays: dict[Any, FloatArray]) -> dict[Any, tuple[tuple[int, ...], bytes]]:
    return {name: (array.shape, np.ascontiguousarray(array).tobytes()) for name, array in arrays.items()}


@pytest.mark.parametrize("name", TINY)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), lora=loras(), seed=st.integers(0, 1 << 30))
def test_round_trips_keep_every_bit(name: str, data: st.DataObject, lora: LoraSpec, seed: int) -> None:
    architecture = data.draw(architectures(name))
    assume(lora.targets != ("v",))
    lora = within(lora, architecture)
    modules = lora_modules(lora, architecture)
    targets = targets_of(modules)
    wild = arrays_of(modules, seed, finite=False)
    assert bits(to_peft(to_qwix(wild, targets), targets)) == bits(wild)

    arrays = arrays_of(modules, seed, finite=True)
    with TemporaryDirectory() as root:
        folder = Path(root) / "adapter"
        store_adapter(folder, to_peft(to_qwix(arrays, targets), targets), AdapterConfig.of(modules, 0.0, "base"), "b" * 64)
        back, _ = read_adapter(folder)
        assert bits(back) == bits(arrays)
        assert adapted_modules(LoraSpec(), folder, architecture) == modules
    served = serving_form(arrays, architecture)
    assert {name: served[name].tobytes() for name in arrays} == {name: array.tobytes() for name, array in arrays.items()}
