"""What becomes of every key of a model's `config.json`: computed, free, or refused at any value but one.

A key that changes what transformers or vLLM compute and that nobody reads here would be silently wrong: each key of a family's
configuration class stands in exactly one of the three (a test walks them). What no list names changes nothing in transformers; it is
refused where it means something in another family, as another engine may read it, and named once otherwise.
"""

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crossmesh.errors import InputError
from crossmesh.models.architecture import Json

_log = logging.getLogger(__name__)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SIZES = _words(
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads max_position_embeddings "
    "rms_norm_eps tie_word_embeddings model_type"
)
_ROPES = _words("rope_parameters rope_scaling rope_theta partial_rotary_factor original_max_position_embeddings")
_WINDOWS = _words("sliding_window layer_types use_sliding_window max_window_layers")
_NONE = (None, False, 0)

FREE: Mapping[str, str] = {
    **dict.fromkeys(
        ("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "decoder_start_token_id"), "tokens are the tokenizer's"
    ),
    **dict.fromkeys(("use_cache", "cache_implementation", "max_length", "num_logits_to_keep"), "of generation"),
    **dict.fromkeys(("initializer_range", "initializer_factor", "_init_weights"), "of weights that are drawn, not read"),
    **dict.fromkeys(("dtype", "torch_dtype"), "model.dtype says it"),
    **dict.fromkeys(
        _words(
            "architectures transformers_version _name_or_path name_or_path auto_map id2label label2id problem_type "
            "task_specific_params finetuning_task license unsloth_version unsloth_fixed _sliding_window_pattern"
        ),
        "information",
    ),
    **dict.fromkeys(
        ("output_hidden_states", "output_attentions", "return_dict", "use_return_dict", "chunk_size_feed_forward"), "form of the output"
    ),
    **dict.fromkeys(("router_aux_loss_coef", "output_router_logits"), "of a loss that only pretraining adds"),
    **dict.fromkeys(("pretraining_tp", "_attn_implementation", "attn_implementation", "_attn_implementation_autoset"), "how, not what"),
    **dict.fromkeys(
        ("mm_tokens_per_image", "vision_config", "audio_config", "vision_soft_tokens_per_image"), "no part of the text decoder"
    ),
    **dict.fromkeys(
        _words(
            "boi_token_index eoi_token_index image_token_index boi_token_id eoi_token_id image_token_id video_token_id "
            "boa_token_id eoa_token_index eoa_token_id audio_token_id"
        ),
        "tokens of images and sound, which text rows do not have",
    ),
}
"""Keys that change nothing here, with the reason."""


@dataclass(frozen=True)
class ConfigKeys:
    """The keys of one family beside those that are free."""

    computed: frozenset[str]
    fixed: Mapping[str, tuple[Any, ...]]
    """By key, the values that are computed; absent counts as the first."""


_FIXED: Mapping[str, tuple[Any, ...]] = {
    "attention_dropout": _NONE,
    "hidden_dropout": _NONE,
    "is_encoder_decoder": _NONE,
    "is_decoder": (*_NONE, True),
    "add_cross_attention": _NONE,
}
_DENSE = {**_FIXED, "hidden_act": ("silu", None), "attention_bias": _NONE, "mlp_bias": _NONE}
_GEMMA = {**_FIXED, "attention_bias": _NONE, "hidden_activation": ("gelu_pytorch_tanh", None), "attn_logit_softcapping": _NONE}

KEYS: Mapping[str, ConfigKeys] = {
    "llama": ConfigKeys(_SIZES | _ROPES | {"head_dim"}, _DENSE),
    "mistral": ConfigKeys(_SIZES | _ROPES | {"head_dim", "sliding_window"}, _DENSE),
    "qwen2": ConfigKeys(_SIZES | _ROPES | _WINDOWS | {"head_dim"}, {**_DENSE, "attention_bias": (*_NONE, True)}),
    "qwen3": ConfigKeys(_SIZES | _ROPES | _WINDOWS | {"head_dim"}, _DENSE),
    "qwen3_moe": ConfigKeys(
        _SIZES
        | _ROPES
        | _words("head_dim num_experts num_local_experts num_experts_per_tok moe_intermediate_size norm_topk_prob")
        | _words("sliding_window max_window_layers"),  # Of windows, which are off.
        {**_DENSE, "use_sliding_window": _NONE, "decoder_sparse_step": (1, None), "mlp_only_layers": (None, [])},
    ),
    "gemma2": ConfigKeys(
        _SIZES
        | _ROPES
        | _words("head_dim sliding_window layer_types query_pre_attn_scalar final_logit_softcapping attn_logit_softcapping"),
        # `hidden_act` of the published files is not read by transformers.
        {
            **{key: value for key, value in _GEMMA.items() if key != "attn_logit_softcapping"},
            "use_bidirectional_attention": _NONE,
            "hidden_act": ("gelu_pytorch_tanh", "gelu", None),
        },
    ),
    "gemma3": ConfigKeys(
        _SIZES
        | _ROPES
        | _words("head_dim sliding_window sliding_window_pattern layer_types rope_local_base_freq query_pre_attn_scalar")
        | {"final_logit_softcapping", "text_config"},
        # `hidden_act` of the first published files is not read by transformers.
        {**_GEMMA, "use_bidirectional_attention": _NONE, "hidden_act": ("gelu_pytorch_tanh", "gelu", None)},
    ),
    "gemma4": ConfigKeys(
        _SIZES
        | _words("rope_parameters head_dim global_head_dim num_global_key_value_heads per_layer_config sliding_window layer_types")
        | _words("final_logit_softcapping attention_k_eq_v num_kv_shared_layers enable_moe_block use_double_wide_mlp num_experts")
        | _words("top_k_experts moe_intermediate_size hidden_size_per_layer_input vocab_size_per_layer_input text_config"),
        {**_GEMMA, "use_bidirectional_attention": (*_NONE, "vision")},
    ),
}
"""By family."""
_ELSEWHERE = frozenset(key for keys in KEYS.values() for key in (*keys.computed, *keys.fixed)) | {
    "quantization_config", "logit_scale", "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling",
    "scale_depth", "scale_emb", "dim_model_base", "attention_chunk_size", "no_rope_layers", "nope_layers", "num_local_experts",
    "num_experts_per_tok", "shared_expert_intermediate_size", "n_shared_experts", "first_k_dense_replace", "qk_layernorm",
    "use_qk_norm", "clip_qkv", "alibi", "resid_pdrop", "embd_pdrop", "longrope", "rope_interleaved",
}  # fmt: skip
"""Keys with a meaning in some model: where the family has no use for one, engines may not agree on it."""


def check_keys(family: str, config: Json, origin: str) -> None:
    """Raise `InputError` for the first key of `config` that is not computed as it says; name those that nobody knows, once."""
    keys, unknown = KEYS[family], []
    for key, value in config.items():
        if key in keys.fixed:
            allowed = keys.fixed[key]
            if not any(value is one or (value == one and not isinstance(value, bool)) for one in allowed):
                shown = ", ".join("absent" if one is None else str(one) for one in allowed)
                raise InputError(f"{origin}: {key}={value!r} is not supported by crossmesh. Allowed: {shown}.")
        elif key in keys.computed or key in FREE or value is None or value is False:
            continue
        elif key in _ELSEWHERE:
            raise InputError(
                f"{origin}: {key}={value!r} is not a key of a {family} model, and engines may not agree on what it means. "
                f"Allowed: absent. Remove it from a copy of the model where it means nothing."
            )
        else:
            unknown.append(key)
    if unknown:
        _name_unknown(origin, family, tuple(sorted(unknown)))


@functools.lru_cache(maxsize=256)
def _name_unknown(origin: str, family: str, keys: tuple[str, ...]) -> None:
    _log.warning("%s: transformers does not read %s in a %s model, nor does crossmesh.", origin, ", ".join(keys), family)
