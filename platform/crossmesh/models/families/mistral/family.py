"""Mistral: as Llama, with one window in all layers where the config has one."""

from pathlib import Path

from crossmesh.models.architecture import Architecture, ConfigKeys, Family, Json
from crossmesh.models.families.config_json import read_size
from crossmesh.models.families.config_keys import DENSE, ROPES, SIZES
from crossmesh.models.families.dense import dense_norms, dense_outer, dense_projections, read_dense

_WINDOW, _KV_HEADS = 4096, 8
"""Where the config does not say (`MistralConfig`); `sliding_window: null` is no window."""


def _read(config: Json, origin: str) -> Architecture:
    whole = {"sliding_window": _WINDOW, "num_key_value_heads": _KV_HEADS, **config}
    window = 0 if whole["sliding_window"] is None else read_size(whole, "sliding_window", origin)
    return read_dense(
        "mistral", whole, origin, positions=131_072, head_dim=0, windows=(window,) * read_size(whole, "num_hidden_layers", origin)
    )


FAMILY = Family(
    name="mistral",
    model_types=("mistral",),
    read=_read,
    projections=dense_projections,
    others=dense_norms,
    outer=dense_outer,
    keys=ConfigKeys(SIZES | ROPES | {"head_dim", "sliding_window"}, DENSE),
    jax="crossmesh.models.families.llama.model_jax:make_llama",
    folder=Path(__file__).parent,
    one_mask=True,
)
