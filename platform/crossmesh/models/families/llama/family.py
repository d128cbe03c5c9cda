"""Llama: one kind of layer, full attention, rotary embedding."""

from crossmesh.models.architecture import Architecture, Family, Json
from crossmesh.models.families.dense import dense_norms, dense_outer, dense_projections, read_dense


def _read(config: Json, origin: str) -> Architecture:
    return read_dense("llama", config, origin, head_dim=0)


FAMILY = Family(
    name="llama",
    model_types=("llama",),
    read=_read,
    projections=dense_projections,
    others=dense_norms,
    outer=dense_outer,
)
