"""What a model is built of, read from its Hugging Face `config.json`: layers, sizes, attention kinds and weight names.

Pure JSON to frozen values: neither transformers nor any weights are needed, so drivers and planners can read it too. How a
family's modules are called in each framework stands in `targets.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from crossmesh.errors import InputError, reading
from crossmesh.files import read_json

AttentionKind = Literal["global", "sliding"]
Json = Mapping[str, Any]

_GEMMA4_GLOBAL_EVERY = 6
"""Gemma 4 without `layer_types` has five sliding layers, then a global one (`Gemma4TextConfig`)."""


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of a layer."""

    theta: float
    kind: str
    """`rope_type` of the config: `default`, `proportional`, `llama3`, ..."""
    fraction: float
    """Part of the head's dimensions that is rotated."""


@dataclass(frozen=True)
class LayerKind:
    """The shape of one decoder layer."""

    attention: AttentionKind
    window: int
    """Tokens a sliding layer sees, its own included; 0 in a global layer."""
    heads: int
    kv_heads: int
    head_dim: int
    shared_kv: bool
    """The key projection also makes the values: there is no value projection."""
    rope: Rope

    @property
    def q_dim(self) -> int:
        """Output features of the query projection, and input features of the output projection."""
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Output features of the key projection, and of the value projection where there is one."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True)
class Architecture:
    """A decoder-only text model."""

    family: str
    """`llama` or `gemma4`: `model.family` of the spec."""
    layers: tuple[LayerKind, ...]
    hidden: int
    ffn: int
    heads: int
    vocab: int
    tied: bool
    """The output projection is the embedding."""
    max_positions: int
    norm_epsilon: float
    logit_softcap: float
    """Logits are `cap * tanh(logits / cap)`; 0 where they are not capped."""
    prefix: str
    """What weight and module names of the text decoder start with: `model.`, or `model.language_model.` inside a multimodal model."""

    def layer_prefix(self, layer: int) -> str:
        """Start of the names of layer `layer`, e.g. `model.layers.0.`."""
        return f"{self.prefix}layers.{layer}."


def read_architecture(folder: Path) -> Architecture:
    """Read `folder/config.json`.

    Raises `InputError` when there is none, or when the model is of a family, or has a part, that crossmesh does not know.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"{folder} has no config.json, so it is no Hugging Face model folder. Give the folder that holds config.json.")
    with reading(path, "a complete Hugging Face config.json"):
        return parse_architecture(read_json(path), str(path))


def parse_architecture(config: Json, origin: str) -> Architecture:
    """Turn a Hugging Face config into an `Architecture`; `origin` names the config in error messages."""
    if "quantization_config" in config:
        raise InputError(f"{origin}: the weights are quantized (quantization_config). Give an unquantized checkpoint.")
    kind = config.get("model_type")
    if kind == "llama":
        return _llama(config, origin)
    if kind == "gemma4_text":
        return _gemma4(config, "model.", origin)
    if kind == "gemma4":
        text = config.get("text_config")
        if not isinstance(text, Mapping):
            raise InputError(f"{origin}: model_type=gemma4 without a text_config. Give a complete config.json.")
        return _gemma4(text, "model.language_model.", origin)
    raise InputError(f"{origin}: model_type={kind!r} is not known. Allowed: llama, gemma4, gemma4_text.")


def _llama(config: Json, origin: str) -> Architecture:
    _refuse(config, ("attention_bias", "mlp_bias"), origin)
    heads = _size(config, "num_attention_heads", origin)
    hidden = _size(config, "hidden_size", origin)
    # transformers 5 keeps rope in rope_parameters; older files have rope_theta, and rope_scaling where positions are rescaled.
    rope = config.get("rope_parameters") or {**(config.get("rope_scaling") or {}), "rope_theta": config.get("rope_theta", 10_000.0)}
    layer = LayerKind(
        attention="global",
        window=0,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        shared_kv=False,
        rope=_rope(rope),
    )
    return Architecture(
        family="llama",
        layers=(layer,) * _size(config, "num_hidden_layers", origin),
        hidden=hidden,
        ffn=_size(config, "intermediate_size", origin),
        heads=heads,
        vocab=_size(config, "vocab_size", origin),
        tied=bool(config.get("tie_word_embeddings", False)),
        max_positions=config.get("max_position_embeddings", 2048),
        norm_epsilon=config.get("rms_norm_eps", 1e-6),
        logit_softcap=0.0,
        prefix="model.",
    )


def _gemma4(config: Json, prefix: str, origin: str) -> Architecture:
    # Parts of the smaller Gemma 4 models: experts, per-layer embeddings, layers that reuse an earlier layer's keys and values.
    _refuse(config, ("attention_bias", "enable_moe_block", "num_kv_shared_layers", "use_bidirectional_attention"), origin, allow="vision")
    if config.get("hidden_size_per_layer_input", 256):
        raise InputError(f"{origin}: hidden_size_per_layer_input is not 0. Gemma 4 models with per-layer embeddings are not supported.")
    count = _size(config, "num_hidden_layers", origin)
    kinds = config.get("layer_types") or [
        "full_attention" if (index + 1) % _GEMMA4_GLOBAL_EVERY == 0 or index + 1 == count else "sliding_attention" for index in range(count)
    ]
    if len(kinds) != count:
        raise InputError(f"{origin}: layer_types names {len(kinds)} layers, num_hidden_layers says {count}. They must be equal.")
    return Architecture(
        family="gemma4",
        layers=tuple(_gemma4_layer(config, index, kind, origin) for index, kind in enumerate(kinds)),
        hidden=_size(config, "hidden_size", origin),
        ffn=_size(config, "intermediate_size", origin),
        heads=_size(config, "num_attention_heads", origin),
        vocab=_size(config, "vocab_size", origin),
        tied=bool(config.get("tie_word_embeddings", True)),
        max_positions=config.get("max_position_embeddings", 131_072),
        norm_epsilon=config.get("rms_norm_eps", 1e-6),
        logit_softcap=config.get("final_logit_softcapping") or 0.0,
        prefix=prefix,
    )


def _gemma4_layer(config: Json, index: int, kind: str, origin: str) -> LayerKind:
    heads, kv_heads, head_dim = (_size(config, name, origin) for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    ropes = config.get("rope_parameters") or {
        "sliding_attention": {"rope_theta": 10_000.0},
        "full_attention": {"rope_theta": 1_000_000.0, "rope_type": "proportional", "partial_rotary_factor": 0.25},
    }
    if kind == "sliding_attention":
        return LayerKind("sliding", config.get("sliding_window", 512), heads, kv_heads, head_dim, shared_kv=False, rope=_rope(ropes[kind]))
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
    return LayerKind("global", 0, heads, kv_heads, head_dim, shared_kv=shared, rope=_rope(ropes[kind]))


def _rope(parameters: Json) -> Rope:
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    return Rope(theta=float(parameters["rope_theta"]), kind=kind, fraction=float(parameters.get("partial_rotary_factor", 1.0)))


def _size(config: Json, key: str, origin: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value <= 0:
        raise InputError(f"{origin}: {key}={value!r} is not possible. Allowed: a positive whole number.")
    return value


def _refuse(config: Json, keys: tuple[str, ...], origin: str, allow: object = None) -> None:
    for key in keys:
        value = config.get(key)
        if value and value != allow:
            raise InputError(f"{origin}: {key}={value!r} is not supported by crossmesh. Allowed: absent, false or 0.")
