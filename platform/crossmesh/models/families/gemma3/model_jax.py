"""Tunix's Gemma 3 as the Hugging Face model computes it. Importing this imports Tunix: workers only.

Tunix 0.1.7's Gemma 3 takes sliding and global layers in a fixed pattern, knows two ways to scale
queries and one norm epsilon, and computes norms in the precision of the activations. Here all of that is the config's, and norms are
float32 as in transformers.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from tunix.models.gemma3 import model as gemma3

from crossmesh.compat.tunix_modules import become, key_norm, query_norm
from crossmesh.models.architecture import Architecture
from crossmesh.models.jax.attention_jax import attend
from crossmesh.models.jax.layers_jax import DTYPES, HiddenStates, KeyValue, ModelConfig, activations, rotate, set_up
from crossmesh.models.jax.sharding_jax import HEADS, STREAM, constrain


class Gemma3Attention(gemma3.Attention):
    """Tunix's gemma3 attention on segments. `query_scale`, `rope`, `window`, `cap` and `kernel` are set on the instance."""

    def block(self, x: Any, segment_pos: Any, cache: Any, attn_mask: Any) -> Any:
        """`attn_mask` holds segment ids [B, T]."""
        del cache
        query, key, value = (constrain(projected, *HEADS) for projected in (self.q_einsum(x), *self.kv_einsum(x)))
        query, key = self.normed(query, key)
        query, key = rotate(query, segment_pos, self.rope) * self.query_scale, rotate(key, segment_pos, self.rope)
        mixed = attend(query, key, value, attn_mask, self.window, self.kernel, self.cap)
        return None, constrain(self.attn_vec_einsum(mixed), *STREAM)

    def normed(self, query: Any, key: Any) -> tuple[Any, Any]:
        """Queries and keys before rotation."""
        return query_norm(self)(query), key_norm(self)(key)


class _Norm(gemma3.RMSNorm):
    """Tunix's norm in float32, with `epsilon`, set on the instance."""

    def __call__(self, x: Any) -> Any:
        wide = x.astype(jnp.float32)
        normed = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.epsilon)
        return (normed * (1 + self.scale.get_value().astype(jnp.float32))).astype(x.dtype)


class _Model(HiddenStates, gemma3.Gemma3):
    def embed(self, tokens: Any) -> Any:
        rows = super().embed(tokens)
        return rows * jnp.sqrt(rows.shape[-1]).astype(rows.dtype)


def make_gemma3(architecture: Architecture, settings: ModelConfig, attention: type[Gemma3Attention] = Gemma3Attention) -> Any:
    """Tunix's Gemma 3 with Q, K and V apart and `attention`, hidden states as output."""
    first, dtype = architecture.layers[0], DTYPES[settings.dtype]
    config = gemma3.ModelConfig(
        num_layers=len(architecture.layers),
        num_embed=architecture.vocab,
        embed_dim=architecture.hidden,
        hidden_dim=architecture.ffn,
        num_heads=first.heads,
        head_dim=first.head_dim,
        num_kv_heads=first.kv_heads,
        sliding_window_size=1,  # Each layer is told its own below.
        param_dtype=dtype,
        shd_config=activations(gemma3.ShardingConfig.get_default_sharding()),
    )
    model = _Model(config, rngs=nnx.Rngs(0))
    for layer, block in zip(architecture.layers, model.layers, strict=True):
        _unfuse(block.attn, config)
        set_up(block, type(block), attention, (gemma3.Einsum, nnx.Linear), settings)
        block.attn.query_scale, block.attn.window = architecture.query_scalar**-0.5, layer.window
        block.attn.rope, block.attn.cap = layer.rope, architecture.attention_softcap
    for _, module in model.iter_modules():
        if type(module) is gemma3.RMSNorm:
            become(module, _Norm, "__call__")
            module.epsilon = architecture.norm_epsilon
    return model


def _unfuse(attention: Any, config: Any) -> None:
    """Give `attention` a projection for each of Q, K and V, however Tunix fused them."""

    def projection(heads: int) -> Any:
        return gemma3.Einsum(
            einsum_str="BTD,NDH->BTNH",
            shape=(heads, config.embed_dim, config.head_dim),
            rngs=nnx.Rngs(0),
            sharding=config.shd_config.q_weight_ndh,
            param_dtype=config.param_dtype,
        )

    if hasattr(attention, "qkv_einsum"):
        del attention.qkv_einsum
        attention.q_einsum = projection(config.num_heads)
    attention.kv_einsum = KeyValue(lambda: projection(config.num_kv_heads))
