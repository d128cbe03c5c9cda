"""Llama: one kind of layer, full attention, rotary embedding."""

from collections.abc import Iterator

from crossmesh.models.architecture import (
    KV_DIMS,
    O_DIMS,
    Q_DIMS,
    Architecture,
    Family,
    Json,
    LayerKind,
    Weight,
    gated_mlp,
    outer_weights,
)
from crossmesh.models.config_json import read_rope, read_size, refuse


def _read(config: Json, origin: str) -> Architecture:
    refuse(config, ("attention_bias", "mlp_bias"), origin)
    heads = read_size(config, "num_attention_heads", origin)
    hidden = read_size(config, "hidden_size", origin)
    # transformers 5 keeps rope in rope_parameters; older files have rope_theta, and rope_scaling where positions are rescaled.
    rope = config.get("rope_parameters") or {**(config.get("rope_scaling") or {}), "rope_theta": config.get("rope_theta", 10_000.0)}
    layer = LayerKind(
        attention="global",
        window=0,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        shared_kv=False,
        rope=read_rope(rope),
    )
    return Architecture(
        family="llama",
        layers=(layer,) * read_size(config, "num_hidden_layers", origin),
        hidden=hidden,
        ffn=read_size(config, "intermediate_size", origin),
        heads=heads,
        vocab=read_size(config, "vocab_size", origin),
        tied=bool(config.get("tie_word_embeddings", False)),
        max_positions=config.get("max_position_embeddings", 2048),
        norm_epsilon=config.get("rms_norm_eps", 1e-6),
        logit_softcap=0.0,
        prefix="model.",
    )


def _projections(architecture: Architecture, index: int) -> dict[str, Weight]:
    """Tunix llama3: q, k, v as [D, heads, H], o as [heads, H, D]."""
    layer, hidden, path = architecture.layers[index], (architecture.hidden,), ("layers", index, "attn")
    hf = f"{architecture.layer_prefix(index)}self_attn"
    q_shape, kv_shape = (layer.heads, layer.head_dim), (layer.kv_heads, layer.head_dim)
    return {
        "q": Weight(f"{hf}.q_proj", "weight", (*path, "q_proj"), "w", q_shape, hidden, (2, 0, 1), Q_DIMS),
        "k": Weight(f"{hf}.k_proj", "weight", (*path, "k_proj"), "w", kv_shape, hidden, (2, 0, 1), KV_DIMS),
        "v": Weight(f"{hf}.v_proj", "weight", (*path, "v_proj"), "w", kv_shape, hidden, (2, 0, 1), KV_DIMS),
        "o": Weight(f"{hf}.o_proj", "weight", (*path, "o_proj"), "w", hidden, q_shape, (1, 2, 0), O_DIMS),
        **gated_mlp(architecture, index),
    }


def _others(architecture: Architecture, index: int) -> Iterator[Weight]:
    """Norms of a Llama layer."""
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield Weight(
            f"{architecture.layer_prefix(index)}{norm}", "weight", ("layers", index, norm), "w", (architecture.hidden,), dims=("norm",)
        )


FAMILY = Family(
    name="llama",
    model_types=("llama",),
    read=_read,
    projections=_projections,
    others=_others,
    outer=lambda architecture: outer_weights(architecture, "w"),
)
