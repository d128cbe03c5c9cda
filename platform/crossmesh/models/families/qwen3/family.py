"""Qwen 3, dense: as Llama, with norms of queries and keys and heads of a size of their own; windows as Qwen 2."""

from collections.abc import Iterator
from pathlib import Path

from crossmesh.models.architecture import Architecture, ConfigKeys, Family, Json, Weight
from crossmesh.models.families.config_keys import DENSE, ROPES, SIZES, WINDOWS
from crossmesh.models.families.dense import dense_norms, dense_outer, dense_projections, read_dense
from crossmesh.models.families.qwen2.family import read_windows

_HEAD_DIM = 128
"""Where the config does not say (`Qwen3Config.head_dim`)."""


def _read(config: Json, origin: str) -> Architecture:
    return read_dense("qwen3", config, origin, positions=32_768, head_dim=_HEAD_DIM, windows=read_windows(config, origin))


def qwen3_norms(architecture: Architecture, index: int) -> Iterator[Weight]:
    """Norms of a layer, of its queries and of its keys."""
    yield from dense_norms(architecture, index)
    head_dim = architecture.layers[index].head_dim
    for name in ("q_norm", "k_norm"):
        hf = f"{architecture.layer_prefix(index)}self_attn.{name}"
        yield Weight(hf, "weight", ("layers", index, "attn", name), "w", (head_dim,), dims=("norm",))


FAMILY = Family(
    name="qwen3",
    model_types=("qwen3",),
    read=_read,
    projections=dense_projections,
    others=qwen3_norms,
    outer=dense_outer,
    keys=ConfigKeys(SIZES | ROPES | WINDOWS | {"head_dim"}, DENSE),
    jax="crossmesh.models.families.qwen3.model_jax:make_qwen3",
    folder=Path(__file__).parent,
)
