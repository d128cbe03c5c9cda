"""What becomes of every key of a model's `config.json`: computed, free, or refused at any value but one.

A key that changes what transformers or vLLM compute and that nobody reads here would be silently wrong: each key of a family's
configuration class stands in exactly one of the three (a test walks them). What no list names changes nothing in transformers; it is
refused where it means something in another family, as another engine may read it, and named once otherwise.
"""

import functools
import logging
from collections.abc import Mapping
from typing import Any

from crossmesh.errors import InputError
from crossmesh.models.architecture import Family, Json

_log = logging.getLogger(__name__)


def words(text: str) -> frozenset[str]:
    """The words of `text`."""
    return frozenset(text.split())


SIZES = words(
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads max_position_embeddings "
    "rms_norm_eps tie_word_embeddings model_type"
)
ROPES = words("rope_parameters rope_scaling rope_theta partial_rotary_factor original_max_position_embeddings")
WINDOWS = words("sliding_window layer_types use_sliding_window max_window_layers")
NONE = (None, False, 0)

FREE: Mapping[str, str] = {
    **dict.fromkeys(
        ("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "decoder_start_token_id"), "tokens are the tokenizer's"
    ),
    **dict.fromkeys(("use_cache", "cache_implementation", "max_length", "num_logits_to_keep"), "of generation"),
    **dict.fromkeys(("initializer_range", "initializer_factor", "_init_weights"), "of weights that are drawn, not read"),
    **dict.fromkeys(("dtype", "torch_dtype"), "model.dtype says it"),
    **dict.fromkeys(
        words(
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
        words(
            "boi_token_index eoi_token_index image_token_index boi_token_id eoi_token_id image_token_id video_token_id "
            "boa_token_id eoa_token_index eoa_token_id audio_token_id"
        ),
        "tokens of images and sound, which text rows do not have",
    ),
}
"""Keys that change nothing here, with the reason."""


FIXED: Mapping[str, tuple[Any, ...]] = {
    "attention_dropout": NONE,
    "hidden_dropout": NONE,
    "is_encoder_decoder": NONE,
    "is_decoder": (*NONE, True),
    "add_cross_attention": NONE,
}
DENSE = {**FIXED, "hidden_act": ("silu", None), "attention_bias": NONE, "mlp_bias": NONE}
GEMMA = {**FIXED, "attention_bias": NONE, "hidden_activation": ("gelu_pytorch_tanh", None), "attn_logit_softcapping": NONE}

_OTHERS = frozenset({
    "quantization_config", "logit_scale",
    "scale_depth", "scale_emb", "dim_model_base", "attention_chunk_size", "no_rope_layers", "nope_layers", "num_local_experts",
    "num_experts_per_tok", "shared_expert_intermediate_size", "n_shared_experts", "first_k_dense_replace", "qk_layernorm",
    "use_qk_norm", "clip_qkv", "alibi", "resid_pdrop", "embd_pdrop", "longrope", "rope_interleaved",
})  # fmt: skip
"""Keys with a meaning in some model that no family here reads."""


def check_keys(family: Family, config: Json, origin: str, elsewhere: frozenset[str]) -> None:
    """Raise `InputError` for the first key of `config` that is not computed as it says; name those that nobody knows, once.

    `elsewhere`: keys of other families. Where this one has no use for such a key, engines may not agree on what it means.
    """
    keys, unknown = family.keys, []
    for key, value in config.items():
        if key in keys.fixed:
            allowed = keys.fixed[key]
            if not any(value is one or (value == one and not isinstance(value, bool)) for one in allowed):
                shown = ", ".join("absent" if one is None else str(one) for one in allowed)
                raise InputError(f"{origin}: {key}={value!r} is not supported by crossmesh. Allowed: {shown}.")
        elif key in keys.computed or key in FREE or value is None or value is False:
            continue
        elif key in elsewhere or key in _OTHERS:
            raise InputError(
                f"{origin}: {key}={value!r} is not a key of a {family.name} model, and engines may not agree on what it means. "
                f"Allowed: absent. Remove it from a copy of the model where it means nothing."
            )
        else:
            unknown.append(key)
    if unknown:
        _name_unknown(origin, family.name, tuple(sorted(unknown)))


@functools.lru_cache(maxsize=256)
def _name_unknown(origin: str, family: str, keys: tuple[str, ...]) -> None:
    _log.warning("%s: transformers does not read %s in a %s model, nor does crossmesh.", origin, ", ".join(keys), family)
