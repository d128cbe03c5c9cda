"""Llama: one kind of layer, full attention, rotary embedding."""

from pathlib import Path

from crossmesh.models.architecture import Architecture, ConfigKeys, Family, Json
from crossmesh.models.families.config_keys import DENSE, ROPES, SIZES
from crossmesh.models.families.dense import dense_norms, dense_outer, dense_projections, read_dense


def _read(config: Json, origin: str) -> Architecture:
    return read_dense("llama", config, origin, positions=2048, head_dim=0)


FAMILY = Family(
    name="llama",
    model_types=("llama",),
    read=_read,
    projections=dense_projections,
    others=dense_norms,
    outer=dense_outer,
    keys=ConfigKeys(SIZES | ROPES | {"head_dim"}, DENSE),
    jax="crossmesh.models.families.llama.model_jax:make_llama",
    folder=Path(__file__).parent,
)
