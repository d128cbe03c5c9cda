"""Qwen 2 and 2.5: as Llama, with biases of queries, keys and values, and windows in the later layers where the config says so."""

from collections.abc import Iterator
from pathlib import Path

from crossmesh.models.architecture import Architecture, ConfigKeys, Family, Json, Weight
from crossmesh.models.families.config_json import read_layer_types, read_size
from crossmesh.models.families.config_keys import DENSE, NONE, ROPES, SIZES, WINDOWS
from crossmesh.models.families.dense import dense_norms, dense_outer, dense_projections, read_dense

_FIRST_WINDOW = 28
"""The first layer with a window where the config does not say (`Qwen2Config.max_window_layers`)."""


def read_windows(config: Json, origin: str) -> tuple[int, ...]:
    """Tokens that each layer of a Qwen sees; 0: all. Released models have a `sliding_window` that `use_sliding_window` turns off."""
    count = read_size(config, "num_hidden_layers", origin)
    windowed = bool(config.get("use_sliding_window")) and config.get("sliding_window") is not None
    first = config.get("max_window_layers", _FIRST_WINDOW) if windowed else count
    default = ["sliding_attention" if index >= first else "full_attention" for index in range(count)]
    kinds = read_layer_types(config, count, default, origin)
    return tuple(read_size(config, "sliding_window", origin) if kind == "sliding_attention" else 0 for kind in kinds)


def _read(config: Json, origin: str) -> Architecture:
    return read_dense("qwen2", config, origin, positions=32_768, head_dim=0, windows=read_windows(config, origin))


def _others(architecture: Architecture, index: int) -> Iterator[Weight]:
    """Norms and biases. Tunix keeps a bias in one axis over all heads, as Hugging Face does: tp cuts it between heads, as the weight."""
    yield from dense_norms(architecture, index)
    layer, path = architecture.layers[index], ("layers", index, "attn")
    for name, size, counted in (("q", layer.q_dim, "heads"), ("k", layer.kv_dim, "kv_heads"), ("v", layer.kv_dim, "kv_heads")):
        hf = f"{architecture.layer_prefix(index)}self_attn.{name}_proj"
        yield Weight(hf, "bias", path, f"{name}_bias", (size,), dims=(counted,))


FAMILY = Family(
    name="qwen2",
    model_types=("qwen2",),
    read=_read,
    projections=dense_projections,
    others=_others,
    outer=dense_outer,
    keys=ConfigKeys(SIZES | ROPES | WINDOWS | {"head_dim"}, {**DENSE, "attention_bias": (*NONE, True)}),
    jax="crossmesh.models.families.qwen2.model_jax:make_qwen2",
    folder=Path(__file__).parent,
)
