"""Gemma 4: sliding and global layers, whose keys and values may come from one projection, alone or inside a multimodal model."""

from collections.abc import Iterator, Mapping

from crossmesh.errors import InputError
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

_GLOBAL_EVERY = 6
"""Without `layer_types` there are five sliding layers, then a global one (`Gemma4TextConfig`)."""


def _read(config: Json, origin: str) -> Architecture:
    if config["model_type"] == "gemma4_text":
        return _read_text(config, "model.", origin)
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        raise InputError(f"{origin}: model_type=gemma4 without a text_config. Give a complete config.json.")
    return _read_text(text, "model.language_model.", origin)


def _read_text(config: Json, prefix: str, origin: str) -> Architecture:
    # Parts of the smaller Gemma 4 models: experts, per-layer embeddings, layers that reuse an earlier layer's keys and values.
    refuse(config, ("attention_bias", "enable_moe_block", "num_kv_shared_layers", "use_bidirectional_attention"), origin, allow="vision")
    if config.get("hidden_size_per_layer_input", 256):
        raise InputError(f"{origin}: hidden_size_per_layer_input is not 0. Gemma 4 models with per-layer embeddings are not supported.")
    count = read_size(config, "num_hidden_layers", origin)
    kinds = config.get("layer_types") or [
        "full_attention" if (index + 1) % _GLOBAL_EVERY == 0 or index + 1 == count else "sliding_attention" for index in range(count)
    ]
    if len(kinds) != count:
        raise InputError(f"{origin}: layer_types names {len(kinds)} layers, num_hidden_layers says {count}. They must be equal.")
    return Architecture(
        family="gemma4",
        layers=tuple(_layer(config, index, kind, origin) for index, kind in enumerate(kinds)),
        hidden=read_size(config, "hidden_size", origin),
        ffn=read_size(config, "intermediate_size", origin),
        heads=read_size(config, "num_attention_heads", origin),
        vocab=read_size(config, "vocab_size", origin),
        tied=bool(config.get("tie_word_embeddings", True)),
        max_positions=config.get("max_position_embeddings", 131_072),
        norm_epsilon=config.get("rms_norm_eps", 1e-6),
        logit_softcap=config.get("final_logit_softcapping") or 0.0,
        prefix=prefix,
    )


def _layer(config: Json, index: int, kind: str, origin: str) -> LayerKind:
    heads, kv_heads, head_dim = (read_size(config, name, origin) for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    ropes = config.get("rope_parameters") or {
        "sliding_attention": {"rope_theta": 10_000.0},
        "full_attention": {"rope_theta": 1_000_000.0, "rope_type": "proportional", "partial_rotary_factor": 0.25},
    }
    if kind == "sliding_attention":
        return LayerKind(
            "sliding", config.get("sliding_window", 512), heads, kv_heads, head_dim, shared_kv=False, rope=read_rope(ropes[kind])
        )
    if kind != "full_attention":
        raise InputError(f"{origin}: layer_types[{index}]={kind!r} is not known. Allowed: full_attention, sliding_attention.")
    shared = bool(config.get("attention_k_eq_v", False))
    if "per_layer_config" in config:
        # What transformers 5 saves: only the sizes in which a layer differs from the others.
        own = config["per_layer_config"].get(str(index), {})
        kv_heads, head_dim = own.get("num_key_value_heads", kv_heads), own.get("head_dim", head_dim)
    else:
        head_dim = config.get("global_head_dim", 512)
        kv_heads = (config.get("num_global_key_value_heads") if shared else None) or kv_heads
    return LayerKind("global", 0, heads, kv_heads, head_dim, shared_kv=shared, rope=read_rope(ropes[kind]))


def _projections(architecture: Architecture, index: int) -> dict[str, Weight]:
    """Tunix gemma4: q, k, v as [heads, D, H], o as [heads, H, D].

    Tunix fuses K and V of a layer that has both into one `kv_einsum`; we build it as two modules below that name (`models/gemma4_jax.py`
    says why). A layer where they share a projection has `k_einsum` only.
    """
    layer, hidden, path = architecture.layers[index], (architecture.hidden,), ("layers", index, "attn")
    hf = f"{architecture.layer_prefix(index)}self_attn"
    q_shape, kv_shape = (layer.heads, layer.head_dim), (layer.kv_heads, layer.head_dim)
    key = ("k_einsum",) if layer.shared_kv else ("kv_einsum", "k")
    projections = {
        "q": Weight(f"{hf}.q_proj", "weight", (*path, "q_einsum"), "w", q_shape, hidden, (0, 2, 1), Q_DIMS),
        "k": Weight(f"{hf}.k_proj", "weight", (*path, *key), "w", kv_shape, hidden, (0, 2, 1), KV_DIMS),
        "v": Weight(f"{hf}.v_proj", "weight", (*path, "kv_einsum", "v"), "w", kv_shape, hidden, (0, 2, 1), KV_DIMS),
        "o": Weight(f"{hf}.o_proj", "weight", (*path, "attn_vec_einsum"), "w", hidden, q_shape, (1, 2, 0), O_DIMS),
        **gated_mlp(architecture, index),
    }
    if layer.shared_kv:
        del projections["v"]
    return projections


def _others(architecture: Architecture, index: int) -> Iterator[Weight]:
    """Norms and the output scale of a Gemma 4 layer."""
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
        yield Weight(f"{hf}.self_attn.{name}", "weight", (*path, "attn", ours), "scale", (head_dim,), dims=("norm",))
    yield Weight(hf, "layer_scalar", path, "skip_scale", (1,), dims=("one",), buffer=True)


FAMILY = Family(
    name="gemma4",
    model_types=("gemma4", "gemma4_text"),
    read=_read,
    projections=_projections,
    others=_others,
    outer=lambda architecture: outer_weights(architecture, "scale"),
)
