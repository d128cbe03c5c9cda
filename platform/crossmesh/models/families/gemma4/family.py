"""Gemma 4: sliding and global layers, alone or inside a multimodal model; all of its sizes.

Keys and values may come from one projection (31B, 26B-A4B) or from an earlier layer (E2B, E4B); experts may stand beside the feed-forward
network (26B-A4B); every layer may get an embedding of the token for itself (E2B, E4B).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from crossmesh.errors import InputError
from crossmesh.models.architecture import (
    Architecture,
    ConfigKeys,
    Experts,
    Family,
    Json,
    LayerKind,
    Rope,
    Weight,
    outer_weights,
)
from crossmesh.models.families.config_json import read_layer_types, read_size
from crossmesh.models.families.config_keys import GEMMA, NONE, SIZES, words
from crossmesh.models.families.gemma import NORMS, check_tied, gemma_norms, gemma_projections, text_config
from crossmesh.models.families.rope import read_rope, whole_head

_ROPES = {
    "sliding_attention": {"rope_theta": 10_000.0},
    "full_attention": {"rope_theta": 1_000_000.0, "rope_type": "proportional", "partial_rotary_factor": 0.25},
}
"""Without `rope_parameters` (`Gemma4TextConfig`)."""
_GLOBAL_EVERY = 6
"""Without `layer_types` there are five sliding layers, then a global one (`Gemma4TextConfig`)."""


def _read(given: Json, origin: str) -> Architecture:
    config, prefix = text_config(given, origin)
    vocab = read_size(config, "vocab_size", origin)
    return Architecture(
        family="gemma4",
        layers=_layers(config, origin),
        hidden=read_size(config, "hidden_size", origin),
        ffn=read_size(config, "intermediate_size", origin),
        heads=read_size(config, "num_attention_heads", origin),
        vocab=vocab,
        tied=bool(config.get("tie_word_embeddings", True)),
        max_positions=config.get("max_position_embeddings", 131_072),
        norm_epsilon=config.get("rms_norm_eps", 1e-6),
        logit_softcap=config.get("final_logit_softcapping") or 0.0,
        prefix=prefix,
        experts=_experts(config, origin),
        per_layer_input=_per_layer_input(config, vocab, origin),
    )


def _experts(config: Json, origin: str) -> Experts | None:
    if not config.get("enable_moe_block", False):
        return None
    count, used, ffn = (read_size(config, name, origin) for name in ("num_experts", "top_k_experts", "moe_intermediate_size"))
    if used > count:
        raise InputError(f"{origin}: top_k_experts={used}, but there are num_experts={count}. Allowed: up to {count}.")
    return Experts(count, used, ffn)


def _per_layer_input(config: Json, vocab: int, origin: str) -> int:
    width: int = config.get("hidden_size_per_layer_input", 256) or 0
    own = config.get("vocab_size_per_layer_input", 262_144)
    if width and own != vocab:
        raise InputError(
            f"{origin}: vocab_size_per_layer_input={own} is not supported. Allowed: vocab_size={vocab}, or no per-layer input."
        )
    return width


def _layers(config: Json, origin: str) -> tuple[LayerKind, ...]:
    count = read_size(config, "num_hidden_layers", origin)
    default = ["sliding_attention" if (index + 1) % _GLOBAL_EVERY else "full_attention" for index in range(count)]
    # transformers makes the last one global, whatever the file says.
    kinds = [*read_layer_types(config, count, default, origin)[:-1], "full_attention"]
    layers = [_layer(config, index, kind, origin) for index, kind in enumerate(kinds)]
    own = count - (config.get("num_kv_shared_layers") or 0)
    if own < 0 or not all(kind in kinds[:own] for kind in kinds[own:]):
        raise InputError(
            f"{origin}: num_kv_shared_layers={count - own} of {count} layers leave none of a kind whose keys and values can be used. "
            "Allowed: fewer, so that each of layer_types comes before them."
        )
    wide = 2 * read_size(config, "intermediate_size", origin) if config.get("use_double_wide_mlp", False) else None
    for index in range(own, count):
        source = max(earlier for earlier in range(own) if kinds[earlier] == kinds[index])
        layers[index] = replace(layers[index], kv_from=source, ffn=wide)
    return tuple(layers)


def _layer(config: Json, index: int, kind: str, origin: str) -> LayerKind:
    heads, kv_heads, head_dim = (read_size(config, name, origin) for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    rope = _rope(config, kind, origin)
    if kind == "sliding_attention":
        window = read_size({"sliding_window": 512, **config}, "sliding_window", origin)
        return LayerKind("sliding", window, heads, kv_heads, head_dim, shared_kv=False, rope=rope)
    shared = bool(config.get("attention_k_eq_v", False))
    if "per_layer_config" in config:
        # What transformers 5 saves: only the sizes in which a layer differs from the others.
        own = config["per_layer_config"].get(str(index), {})
        kv_heads, head_dim = own.get("num_key_value_heads", kv_heads), own.get("head_dim", head_dim)
    else:
        head_dim = config.get("global_head_dim", 512)
        kv_heads = (config.get("num_global_key_value_heads") if shared else None) or kv_heads
    return LayerKind("global", 0, heads, kv_heads, head_dim, shared_kv=shared, rope=rope)


def _rope(config: Json, kind: str, origin: str) -> Rope:
    parameters = (config.get("rope_parameters") or _ROPES).get(kind)
    if not isinstance(parameters, Mapping) or "rope_theta" not in parameters:
        raise InputError(f"{origin}: rope_parameters has no {kind} with a rope_theta. Give a complete config.json.")
    return whole_head(read_rope(parameters, f"{origin}: {kind}", config.get("max_position_embeddings", 131_072)), origin)


def _projections(architecture: Architecture, index: int) -> dict[str, Weight]:
    """No V where it is K's projection, neither where a layer uses an earlier layer's keys and values."""
    layer = architecture.layers[index]
    absent = ("k", "v") if layer.kv_from is not None else ("v",) if layer.shared_kv else ()
    return {name: weight for name, weight in gemma_projections(architecture, index).items() if name not in absent}


def _others(architecture: Architecture, index: int) -> Iterator[Weight]:
    """Norms and the output scale of a Gemma 4 layer; experts and the layer's own input where it has them."""
    hf, path, hidden = architecture.layer_prefix(index).rstrip("."), ("layers", index), architecture.hidden
    norms = {**NORMS}
    if architecture.experts:
        norms |= {
            "post_feedforward_layernorm_1": "dense_post_ffw_norm",
            "pre_feedforward_layernorm_2": "moe_pre_ffw_norm",
            "post_feedforward_layernorm_2": "moe_post_ffw_norm",
        }
    if architecture.per_layer_input:
        norms["post_per_layer_input_norm"] = "post_per_layer_input_norm"
    heads = ("q", "k") if architecture.layers[index].kv_from is None else ("q",)
    yield from gemma_norms(architecture, index, norms, heads, "norm")
    yield Weight(hf, "layer_scalar", path, "skip_scale", (1,), dims=("one",), buffer=True)
    if architecture.experts:
        yield from _expert_weights(architecture.experts, hidden, hf, (*path, "moe"))
    if width := architecture.per_layer_input:
        gate, out = "per_layer_input_gate", "per_layer_projection"
        yield Weight(f"{hf}.{gate}", "weight", (*path, gate), "w", (width,), (hidden,), (1, 0), ("per_layer", "hidden"))
        yield Weight(f"{hf}.{out}", "weight", (*path, out), "w", (hidden,), (width,), (1, 0), ("hidden", "per_layer"))


def _expert_weights(experts: Experts, hidden: int, hf: str, path: tuple[str | int, ...]) -> Iterator[Weight]:
    """Router and experts as `models/families/experts_jax.py` has them: matrices [in, out], gate and up apart."""
    count, ffn = experts.count, experts.ffn
    yield Weight(f"{hf}.router.proj", "weight", path, "router", (count,), (hidden,), (1, 0), ("experts", "hidden"))
    yield Weight(f"{hf}.router", "scale", path, "router_scale", (hidden,), dims=("norm",))
    yield Weight(f"{hf}.router", "per_expert_scale", path, "expert_scale", (count,), dims=("experts",))
    yield Weight(
        f"{hf}.experts",
        "gate_up_proj",
        path,
        "gate_up",
        (count, 2, ffn, hidden),
        axes=(1, 0, 3, 2),
        dims=("experts", "pair", "ffn", "hidden"),
        stored=(count, 2 * ffn, hidden),
    )
    yield Weight(f"{hf}.experts", "down_proj", path, "down", (count, hidden, ffn), axes=(0, 2, 1), dims=("experts", "hidden", "ffn"))


def _outer(architecture: Architecture) -> Iterator[Weight]:
    """Embedding and last norm; the table, projection and norm of the layers' own inputs."""
    yield from outer_weights(architecture, "scale")
    if width := architecture.per_layer_input:
        hf, path, layers = architecture.prefix, ("embedder",), len(architecture.layers)
        table, projection, norm = "embed_tokens_per_layer", "per_layer_model_projection", "per_layer_projection_norm"
        table_dims = ("vocab", "layers", "per_layer_width")
        yield Weight(f"{hf}{table}", "weight", path, "per_layer_input_embedding", (architecture.vocab,), (layers, width), dims=table_dims)
        made, dims = (layers, width), ("layers", "per_layer", "hidden")
        yield Weight(f"{hf}{projection}", "weight", (*path, projection), "w", made, (architecture.hidden,), (2, 0, 1), dims)
        yield Weight(f"{hf}{norm}", "weight", (*path, norm), "scale", (width,), dims=("norm",))


def _unused(architecture: Architecture) -> frozenset[str]:
    """Published checkpoints hold projections and norms also where a layer uses an earlier layer's keys and values."""
    return frozenset(
        f"{architecture.layer_prefix(index)}self_attn.{name}.weight"
        for index, layer in enumerate(architecture.layers)
        if layer.kv_from is not None
        for name in ("k_proj", "v_proj", "k_norm", "v_norm")
    )


_TUNIX_EPSILON = 1e-6
"""Written into Tunix's gemma4 `RMSNorm`."""


def _check_jax(architecture: Architecture) -> None:
    check_tied(architecture)
    if architecture.norm_epsilon != _TUNIX_EPSILON:
        raise InputError(
            f"This Gemma 4 has rms_norm_eps={architecture.norm_epsilon}; the JAX backend (Tunix 0.1.7) computes with "
            f"{_TUNIX_EPSILON} only. Use backend=torch."
        )


FAMILY = Family(
    name="gemma4",
    model_types=("gemma4", "gemma4_text"),
    read=_read,
    projections=_projections,
    others=_others,
    outer=_outer,
    unused=_unused,
    keys=ConfigKeys(
        SIZES
        | words("rope_parameters head_dim global_head_dim num_global_key_value_heads per_layer_config sliding_window layer_types")
        | words("final_logit_softcapping attention_k_eq_v num_kv_shared_layers enable_moe_block use_double_wide_mlp num_experts")
        | words("top_k_experts moe_intermediate_size hidden_size_per_layer_input vocab_size_per_layer_input text_config"),
        {**GEMMA, "use_bidirectional_attention": (*NONE, "vision")},
    ),
    jax="crossmesh.models.families.gemma4.model_jax:make_gemma4",
    folder=Path(__file__).parent,
    check_jax=_check_jax,
)
