"""What Llama, Qwen 2 and Qwen 3 share: how their config is read, and how Hugging Face and Tunix lay out their layers.

A family's own file adds what sets it apart: windows, biases, norms of queries and keys.
"""

from collections.abc import Iterator

from crossmesh.errors import InputError
from crossmesh.models.architecture import (
    KV_DIMS,
    O_DIMS,
    Q_DIMS,
    Architecture,
    Json,
    LayerKind,
    Weight,
    gated_mlp,
    outer_weights,
)
from crossmesh.models.families.config_json import read_size
from crossmesh.models.families.rope import read_rope


def read_dense(family: str, config: Json, origin: str, positions: int, head_dim: int, windows: tuple[int, ...] = ()) -> Architecture:
    """Read a config of `family`.

    `positions` and `head_dim` are what the family takes where the config has none, the second 0 for the hidden size over the heads;
    `windows` says for each layer how many tokens it sees, 0 for all of them, as does leaving it out.
    """
    heads = read_size(config, "num_attention_heads", origin)
    hidden = read_size(config, "hidden_size", origin)
    # transformers 5 keeps rope in rope_parameters; older files have rope_theta, and rope_scaling where positions are rescaled.
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    outside = {key: config[key] for key in ("rope_theta", "partial_rotary_factor") if config.get(key) is not None}
    trained = {key: config[key] for key in ("original_max_position_embeddings",) if config.get(key) is not None}
    positions = config.get("max_position_embeddings", positions)
    rope = read_rope({"rope_theta": 10_000.0, **outside, **given, **trained}, origin, positions)
    if rope.fraction != 1 or rope.kind == "proportional":
        raise InputError(
            f"{origin}: a part of the head's dimensions is rotated, which transformers does not compute for {family}. Allowed: all."
        )
    layers = tuple(
        LayerKind(
            attention="sliding" if window else "global",
            window=window,
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or head_dim or hidden // heads,
            shared_kv=False,
            rope=rope,
        )
        for window in windows or (0,) * read_size(config, "num_hidden_layers", origin)
    )
    return Architecture(
        family=family,
        layers=layers,
        hidden=hidden,
        ffn=read_size(config, "intermediate_size", origin),
        heads=heads,
        vocab=read_size(config, "vocab_size", origin),
        tied=bool(config.get("tie_word_embeddings", False)),
        max_positions=positions,
        norm_epsilon=config.get("rms_norm_eps", 1e-6),
        logit_softcap=0.0,
        prefix="model.",
    )


def dense_projections(architecture: Architecture, index: int) -> dict[str, Weight]:
    """Tunix: q, k, v as [D, heads, H], o as [heads, H, D]."""
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


def dense_norms(architecture: Architecture, index: int) -> Iterator[Weight]:
    """The two norms of a layer."""
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield Weight(
            f"{architecture.layer_prefix(index)}{norm}", "weight", ("layers", index, norm), "w", (architecture.hidden,), dims=("norm",)
        )


def dense_outer(architecture: Architecture) -> Iterator[Weight]:
    """The tensors of no layer."""
    return outer_weights(architecture, "w")
