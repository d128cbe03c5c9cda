"""Tunix's Gemma 4 as the Hugging Face model computes it. Importing this imports Tunix: workers only."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from tunix.models.gemma4 import model as gemma4

from crossmesh.errors import InputError
from crossmesh.models.architecture import Architecture
from crossmesh.models.attention_jax import attend
from crossmesh.models.layers_jax import DTYPES, Settings, activations, look_up, run_layer, set_up
from crossmesh.models.sharding_jax import HEADS, STREAM, constrain

_NORM_EPSILON = 1e-6
"""Written into Tunix's gemma4 `RMSNorm`."""


class _Attention(gemma4.Attention):
    """Tunix's gemma4 attention on segments. `kernel` is set on the instance."""

    def block(self, x: Any, segment_pos: Any, cache: Any, attn_mask: Any, kv_shared_cache: Any = None) -> Any:
        """`attn_mask` holds segment ids [B, T]."""
        del cache, kv_shared_cache
        sliding = self.attn_type == gemma4.AttentionType.LOCAL_SLIDING
        x = x.astype(self.config.dtype)
        query = constrain(self.q_einsum(x), *HEADS)
        if hasattr(self, "k_einsum"):
            key = value = constrain(self.k_einsum(x), *HEADS)
        else:
            key, value = (constrain(projected, *HEADS) for projected in self.kv_einsum(x))
        # Values have a norm without a scale of their own.
        value = value * jax.lax.rsqrt(jnp.mean(jnp.square(value), axis=-1, keepdims=True) + 1e-6)
        rotate = functools.partial(
            gemma4.apply_rope,
            positions=segment_pos,
            base_frequency=self.rope_base_frequency,
            scale_factor=self.rope_scale_factor,
            rope_proportion=self.rope_proportion,
        )
        window = self.config.sliding_window_size if sliding else 0
        mixed = attend(rotate(self._query_norm(query)), rotate(self._key_norm(key)), value, attn_mask, window or 0, self.kernel)
        return None, constrain(self.attn_vec_einsum(mixed), *STREAM), None


class _Layer(gemma4.DecoderLayer):
    """Tunix's layer with `remat`, set on the instance."""

    def __call__(
        self, x: Any, segment_pos: Any, cache: Any, attn_mask: Any, per_layer_input: Any = None, kv_shared_cache: Any = None
    ) -> Any:
        del cache, per_layer_input, kv_shared_cache
        return None, run_layer(self, x, segment_pos, attn_mask), None


class _KeyValue(nnx.Module):
    """Two projections in place of Tunix's fused `kv_einsum` [2, heads, D, H].

    On the fused weight Qwix makes ONE A [D, rank] for K and V together, so K and V would read the same rank-r projection of the input:
    another, smaller model than PEFT's, where k_proj and v_proj each have their own A. Two modules give exactly PEFT's parameters.
    """

    def __init__(self, config: Any, kv_heads: int, head_dim: int) -> None:
        self.k, self.v = (
            gemma4.Einsum(
                einsum_str="BSD,KDH->BSKH",
                shape=(kv_heads, config.embed_dim, head_dim),
                rngs=nnx.Rngs(0),
                sharding=config.shd_config.q_weight_ndh,
                dtype=config.dtype,
                param_dtype=config.param_dtype,
            )
            for _ in range(2)
        )

    def __call__(self, x: Any) -> tuple[Any, Any]:
        return self.k(x), self.v(x)


class _Hidden(gemma4.Embedder):
    """Gives back the hidden states where Tunix would make logits: the loss makes them only where it needs them."""

    def encode(self, x: Any) -> Any:
        rows = look_up(self, x)
        return rows * jnp.sqrt(rows.shape[-1]).astype(rows.dtype)

    def decode(self, x: Any) -> Any:
        return x


def make_gemma4(architecture: Architecture, settings: Settings) -> Any:
    """Tunix's Gemma 4 with K and V apart, hidden states as output."""
    if not architecture.tied:
        raise InputError(
            "This Gemma 4 has tie_word_embeddings=false, which the JAX backend (Tunix 0.1.7) does not compute. Use backend=torch."
        )
    if architecture.norm_epsilon != _NORM_EPSILON:
        raise InputError(
            f"This Gemma 4 has rms_norm_eps={architecture.norm_epsilon}; the JAX backend (Tunix 0.1.7) computes with "
            f"{_NORM_EPSILON} only. Use backend=torch."
        )
    sliding = next((layer for layer in architecture.layers if layer.attention == "sliding"), architecture.layers[0])
    whole = next((layer for layer in architecture.layers if layer.attention == "global"), sliding)
    config = gemma4.ModelConfig(
        num_layers=len(architecture.layers),
        num_embed=architecture.vocab,
        embed_dim=architecture.hidden,
        hidden_dim=architecture.ffn,
        num_heads=architecture.heads,
        head_dim=sliding.head_dim,
        num_kv_heads=sliding.kv_heads,
        sliding_window_size=sliding.window or None,
        num_global_kv_heads=whole.kv_heads,
        global_key_size=whole.head_dim,
        k_eq_v_global=whole.shared_kv,
        attention_pattern=tuple(
            gemma4.AttentionType.GLOBAL if layer.attention == "global" else gemma4.AttentionType.LOCAL_SLIDING
            for layer in architecture.layers
        ),
        global_rope_proportion=whole.rope.fraction,
        local_rope_proportion=sliding.rope.fraction,
        global_base_frequency=whole.rope.theta,
        local_base_frequency=sliding.rope.theta,
        final_logit_softcap=None,  # `logits_of` caps them.
        param_dtype=DTYPES[settings.dtype],
        dtype=DTYPES[settings.dtype],
        shd_config=activations(gemma4.ShardingConfig.get_default_sharding()),
    )
    model = gemma4.Gemma4(config, rngs=nnx.Rngs(0))
    for layer, block in zip(architecture.layers, model.layers, strict=True):
        if not layer.shared_kv:
            block.attn.kv_einsum = _KeyValue(config, layer.kv_heads, layer.head_dim)
        set_up(block, _Layer, _Attention, (gemma4.Einsum, nnx.Linear), settings)
    model.embedder.__class__ = _Hidden
    return model
