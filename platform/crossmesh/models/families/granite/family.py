"""Granite: as Llama, with multipliers of embeddings, attention scores, what a layer adds, and logits."""

from dataclasses import replace
from pathlib import Path

from crossmesh.errors import InputError
from crossmesh.models.architecture import Architecture, ConfigKeys, Family, Json, Multipliers
from crossmesh.models.families.config_keys import DENSE, ROPES, SIZES
from crossmesh.models.families.dense import dense_norms, dense_outer, dense_projections, read_dense

_MULTIPLIERS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")


def _read(config: Json, origin: str) -> Architecture:
    embedding, attention, residual, logits = (_multiplier(config, key, origin) for key in _MULTIPLIERS)
    return replace(
        read_dense("granite", config, origin, positions=2048, head_dim=0),
        query_scalar=attention**-2,
        multipliers=Multipliers(embedding, residual, 1 / logits),
    )


def _multiplier(config: Json, key: str, origin: str) -> float:
    value = config.get(key, 1.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise InputError(f"{origin}: {key}={value!r} is not possible. Allowed: a positive number.")
    return float(value)


FAMILY = Family(
    name="granite",
    model_types=("granite",),
    read=_read,
    projections=dense_projections,
    others=dense_norms,
    outer=dense_outer,
    keys=ConfigKeys(SIZES | ROPES | {"head_dim", *_MULTIPLIERS}, DENSE),
    jax="crossmesh.models.families.granite.model_jax:make_granite",
    folder=Path(__file__).parent,
)
