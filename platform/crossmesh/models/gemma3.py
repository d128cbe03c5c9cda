"""Gemma 3: sliding and global layers that rotate differently, alone or inside a multimodal model."""

from collections.abc import Iterator, Mapping

from crossmesh.errors import InputError
from crossmesh.models.architecture import (
    KV_DIMS,
    O_DIMS,
    Q_DIMS,
    Architecture,
    AttentionKind,
    Family,
    Json,
    LayerKind,
    Rope,
    Weight,
    gated_mlp,
    outer_weights,
)
from crossmesh.models.config_json import read_layer_types, read_rope, read_size, refuse

_DEFAULTS = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
"""`Gemma3TextConfig`: the multimodal models on the hub say in their `text_config` only where they differ from it."""
_GLOBAL_EVERY = 6
_THETAS = {"full_attention": 1_000_000.0, "sliding_attention": 10_000.0}
_OLD_THETAS = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
"""What transformers 4 calls them."""
_KINDS: dict[str, AttentionKind] = {"full_attention": "global", "sliding_attention": "sliding"}


def _read(config: Json, origin: str) -> Architecture:
    if config["model_type"] == "gemma3_text":
        return _read_text(config, "model.", origin)
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        raise InputError(f"{origin}: model_type=gemma3 without a text_config. Give a complete config.json.")
    return _read_text(text, "model.language_model.", origin)


def _read_text(given: Json, prefix: str, origin: str) -> Architecture:
    config = {**_DEFAULTS, **given}
    refuse(config, ("attention_bias", "use_bidirectional_attention", "attn_logit_softcapping"), origin)
    refuse(config, ("hidden_activation",), origin, allow="gelu_pytorch_tanh")
    count = read_size(config, "num_hidden_layers", origin)
    every = config.get("sliding_window_pattern") or _GLOBAL_EVERY
    default = ["sliding_attention" if (index + 1) % every else "full_attention" for index in range(count)]
    return Architecture(
        family="gemma3",
        layers=tuple(_layer(config, kind, origin) for kind in read_layer_types(config, count, default, origin)),
        hidden=read_size(config, "hidden_size", origin),
        ffn=read_size(config, "intermediate_size", origin),
        heads=read_size(config, "num_attention_heads", origin),
        vocab=read_size(config, "vocab_size", origin),
        tied=bool(config.get("tie_word_embeddings", True)),
        max_positions=config["max_position_embeddings"],
        norm_epsilon=config["rms_norm_eps"],
        logit_softcap=config.get("final_logit_softcapping") or 0.0,
        prefix=prefix,
        query_scalar=config["query_pre_attn_scalar"],
    )


def _layer(config: Json, kind: str, origin: str) -> LayerKind:
    return LayerKind(
        attention=_KINDS[kind],
        window=read_size(config, "sliding_window", origin) if kind == "sliding_attention" else 0,
        heads=read_size(config, "num_attention_heads", origin),
        kv_heads=read_size(config, "num_key_value_heads", origin),
        head_dim=read_size(config, "head_dim", origin),
        shared_kv=False,
        rope=_rope(config, kind),
    )


def _rope(config: Json, kind: str) -> Rope:
    """Rotation of a kind of layer. Older files have one `rope_scaling`, which is that of global layers."""
    parameters = (config.get("rope_parameters") or {}).get(kind)
    if parameters is None:
        parameters = (config.get("rope_scaling") or {}) if kind == "full_attention" else {}
    return read_rope({"rope_theta": config.get(_OLD_THETAS[kind], _THETAS[kind]), **parameters})


def _projections(architecture: Architecture, index: int) -> dict[str, Weight]:
    """Tunix gemma3: q, k, v as [heads, D, H], o as [heads, H, D].

    Tunix fuses K and V, or Q, K and V, into one weight; we build modules of their own (`models/layers_jax.py` says why).
    """
    layer, hidden, path = architecture.layers[index], (architecture.hidden,), ("layers", index, "attn")
    hf = f"{architecture.layer_prefix(index)}self_attn"
    q_shape, kv_shape = (layer.heads, layer.head_dim), (layer.kv_heads, layer.head_dim)
    return {
        "q": Weight(f"{hf}.q_proj", "weight", (*path, "q_einsum"), "w", q_shape, hidden, (0, 2, 1), Q_DIMS),
        "k": Weight(f"{hf}.k_proj", "weight", (*path, "kv_einsum", "k"), "w", kv_shape, hidden, (0, 2, 1), KV_DIMS),
        "v": Weight(f"{hf}.v_proj", "weight", (*path, "kv_einsum", "v"), "w", kv_shape, hidden, (0, 2, 1), KV_DIMS),
        "o": Weight(f"{hf}.o_proj", "weight", (*path, "attn_vec_einsum"), "w", hidden, q_shape, (1, 2, 0), O_DIMS),
        **gated_mlp(architecture, index),
    }


def _others(architecture: Architecture, index: int) -> Iterator[Weight]:
    """Norms of a Gemma 3 layer; both sides keep a scale as its distance from 1."""
    hf, path = architecture.layer_prefix(index).rstrip("."), ("layers", index)
    norms = {
        "input_layernorm": "pre_attention_norm",
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "pre_ffw_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
    for name, ours in norms.items():
        yield Weight(f"{hf}.{name}", "weight", (*path, ours), "scale", (architecture.hidden,), dims=("norm",))
    head_dim = architecture.layers[index].head_dim
    for name, ours in {"q_norm": "_query_norm", "k_norm": "_key_norm"}.items():
        yield Weight(f"{hf}.self_attn.{name}", "weight", (*path, "attn", ours), "scale", (head_dim,), dims=("head_dim",))


FAMILY = Family(
    name="gemma3",
    model_types=("gemma3", "gemma3_text"),
    read=_read,
    projections=_projections,
    others=_others,
    outer=lambda architecture: outer_weights(architecture, "scale"),
)
