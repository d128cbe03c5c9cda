"""Gemma 3: sliding and global layers that rotate differently, alone or inside a multimodal model."""

from collections.abc import Iterator
from pathlib import Path

from crossmesh.models.architecture import (
    Architecture,
    AttentionKind,
    ConfigKeys,
    Family,
    Json,
    LayerKind,
    Rope,
    Weight,
    outer_weights,
)
from crossmesh.models.families.config_json import read_layer_types, read_size
from crossmesh.models.families.config_keys import GEMMA, NONE, ROPES, SIZES, words
from crossmesh.models.families.gemma import NORMS, check_tied, gemma_norms, gemma_projections, text_config
from crossmesh.models.families.rope import read_rope, whole_head

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
    given, prefix = text_config(config, origin)
    config = {**_DEFAULTS, **given}
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
        rope=_rope(config, kind, origin),
    )


def _rope(config: Json, kind: str, origin: str) -> Rope:
    """Rotation of a kind of layer. Older files have one `rope_scaling`, which is that of global layers."""
    parameters = (config.get("rope_parameters") or {}).get(kind)
    if parameters is None:
        parameters = (config.get("rope_scaling") or {}) if kind == "full_attention" else {}
    theta = config.get(_OLD_THETAS[kind], _THETAS[kind])
    rope = read_rope({"rope_theta": theta, **parameters}, f"{origin}: {kind}", config["max_position_embeddings"])
    return whole_head(rope, origin)


def _others(architecture: Architecture, index: int) -> Iterator[Weight]:
    """Norms of a Gemma 3 layer; both sides keep a scale as its distance from 1."""
    return gemma_norms(architecture, index, NORMS, ("q", "k"), "head_dim")


FAMILY = Family(
    name="gemma3",
    model_types=("gemma3", "gemma3_text"),
    read=_read,
    projections=gemma_projections,
    others=_others,
    outer=lambda architecture: outer_weights(architecture, "scale"),
    keys=ConfigKeys(
        SIZES
        | ROPES
        | words("head_dim sliding_window sliding_window_pattern layer_types rope_local_base_freq query_pre_attn_scalar")
        | {"final_logit_softcapping", "text_config"},
        # `hidden_act` of the first published files is not read by transformers.
        {**GEMMA, "use_bidirectional_attention": NONE, "hidden_act": ("gelu_pytorch_tanh", "gelu", None)},
    ),
    jax="crossmesh.models.families.gemma3.model_jax:make_gemma3",
    folder=Path(__file__).parent,
    check_jax=check_tied,
    centered_norms=True,
)
