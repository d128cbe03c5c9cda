"""Gemma 2: sliding and global layers in turn, attention scores and logits that are capped."""

from collections.abc import Iterator
from pathlib import Path

from crossmesh.models.architecture import Architecture, ConfigKeys, Family, Json, LayerKind, Weight, outer_weights
from crossmesh.models.families.config_json import read_layer_types, read_size
from crossmesh.models.families.config_keys import GEMMA, NONE, ROPES, SIZES, words
from crossmesh.models.families.gemma import NORMS, check_tied, gemma_norms, gemma_projections
from crossmesh.models.families.rope import read_rope, whole_head

_DEFAULTS = {
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "head_dim": 256,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
"""`Gemma2Config`, where the config does not say; what it says is null is off."""


def _read(given: Json, origin: str) -> Architecture:
    config = {**_DEFAULTS, **given}
    count = read_size(config, "num_hidden_layers", origin)
    default = ["full_attention" if index % 2 else "sliding_attention" for index in range(count)]
    return Architecture(
        family="gemma2",
        layers=tuple(_layer(config, kind, origin) for kind in read_layer_types(config, count, default, origin)),
        hidden=read_size(config, "hidden_size", origin),
        ffn=read_size(config, "intermediate_size", origin),
        heads=read_size(config, "num_attention_heads", origin),
        vocab=read_size(config, "vocab_size", origin),
        tied=bool(config.get("tie_word_embeddings", True)),
        max_positions=config["max_position_embeddings"],
        norm_epsilon=config["rms_norm_eps"],
        logit_softcap=config["final_logit_softcapping"] or 0.0,
        prefix="model.",
        query_scalar=config["query_pre_attn_scalar"],
        attention_softcap=config["attn_logit_softcapping"] or 0.0,
    )


def _layer(config: Json, kind: str, origin: str) -> LayerKind:
    sliding = kind == "sliding_attention"
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = read_rope({"rope_theta": config.get("rope_theta") or 10_000.0, **parameters}, origin, config["max_position_embeddings"])
    return LayerKind(
        attention="sliding" if sliding else "global",
        window=read_size(config, "sliding_window", origin) if sliding else 0,
        heads=read_size(config, "num_attention_heads", origin),
        kv_heads=read_size(config, "num_key_value_heads", origin),
        head_dim=read_size(config, "head_dim", origin),
        shared_kv=False,
        rope=whole_head(rope, origin),
    )


def _others(architecture: Architecture, index: int) -> Iterator[Weight]:
    """Norms of a layer; both sides keep a scale as its distance from 1."""
    return gemma_norms(architecture, index, NORMS, (), "head_dim")


FAMILY = Family(
    name="gemma2",
    model_types=("gemma2",),
    read=_read,
    projections=gemma_projections,
    others=_others,
    outer=lambda architecture: outer_weights(architecture, "scale"),
    keys=ConfigKeys(
        SIZES | ROPES | words("head_dim sliding_window layer_types query_pre_attn_scalar final_logit_softcapping attn_logit_softcapping"),
        # `hidden_act` of the published files is not read by transformers.
        {
            **{key: value for key, value in GEMMA.items() if key != "attn_logit_softcapping"},
            "use_bidirectional_attention": NONE,
            "hidden_act": ("gelu_pytorch_tanh", "gelu", None),
        },
    ),
    jax="crossmesh.models.families.gemma2.model_jax:make_gemma2",
    folder=Path(__file__).parent,
    check_jax=check_tied,
    capped=True,
    centered_norms=True,
)
