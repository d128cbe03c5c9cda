"""OLMo 2: as Llama, but norms follow attention and feed-forward network, and those of queries and keys span all heads."""

from collections.abc import Iterator
from pathlib import Path

from crossmesh.models.architecture import Architecture, ConfigKeys, Family, Json, Weight
from crossmesh.models.families.config_keys import DENSE, ROPES, SIZES
from crossmesh.models.families.dense import dense_outer, dense_projections, read_dense

_EPSILON = 1e-5
"""Where the config does not say (`Olmo2Config.rms_norm_eps`)."""


def _read(config: Json, origin: str) -> Architecture:
    return read_dense("olmo2", {"rms_norm_eps": _EPSILON, **config}, origin, positions=2048, head_dim=0)


def _norms(architecture: Architecture, index: int) -> Iterator[Weight]:
    """Norms of a layer, and of all its queries and keys: tp divides these between heads, as the projections."""
    hf, path, layer = architecture.layer_prefix(index), ("layers", index), architecture.layers[index]
    for name in ("post_attention_layernorm", "post_feedforward_layernorm"):
        yield Weight(f"{hf}{name}", "weight", (*path, name), "w", (architecture.hidden,), dims=("norm",))
    for name, size, counted in (("q_norm", layer.q_dim, "heads"), ("k_norm", layer.kv_dim, "kv_heads")):
        yield Weight(f"{hf}self_attn.{name}", "weight", (*path, "attn", name), "w", (size,), dims=(counted,))


FAMILY = Family(
    name="olmo2",
    model_types=("olmo2",),
    read=_read,
    projections=dense_projections,
    others=_norms,
    outer=dense_outer,
    keys=ConfigKeys(SIZES | ROPES, DENSE),
    jax="crossmesh.models.families.olmo2.model_jax:make_olmo2",
    folder=Path(__file__).parent,
)
