"""OLMo 2 of the modules of Tunix's Qwen 3, whose norms come before and are of each head. Importing this imports Tunix: workers only."""

from typing import Any

from flax import nnx
from tunix.models.qwen3 import model as qwen3

from crossmesh.models.architecture import Architecture
from crossmesh.models.families.dense_jax import DenseAttention, qwen_config, set_up_dense
from crossmesh.models.jax.layers_jax import HiddenStates, ModelConfig


class _Attention(DenseAttention, qwen3.Attention):
    def project(self, x: Any) -> tuple[Any, Any, Any]:
        query, key, value = super().project(x)
        return _over_heads(self.q_norm, query), _over_heads(self.k_norm, key), value


def _over_heads(norm: Any, x: Any) -> Any:
    return norm(x.reshape(*x.shape[:2], -1)).reshape(x.shape)


class _Layer(qwen3.DecoderLayer):
    def block(self, x: Any, segment_pos: Any, cache: Any, attn_mask: Any, segment_ids: Any = None) -> Any:
        x = x + self.post_attention_layernorm(self.attn.block(x, segment_pos, cache, attn_mask, segment_ids)[1])
        return None, x + self.post_feedforward_layernorm(self.mlp(x))


class _Model(HiddenStates, qwen3.Qwen3):
    pass


def make_olmo2(architecture: Architecture, settings: ModelConfig) -> Any:
    """Qwen 3 with the norms of OLMo 2, hidden states as output."""
    config = qwen_config(qwen3, architecture, settings)
    model = _Model(config, rngs=nnx.Rngs(0))
    for layer, block in zip(architecture.layers, model.layers, strict=True):
        block.post_feedforward_layernorm = block.input_layernorm
        del block.input_layernorm
        block.attn.q_norm, block.attn.k_norm = (_norm(size, config) for size in (layer.q_dim, layer.kv_dim))
    return set_up_dense(model, architecture, settings, _Attention, qwen3.Einsum, _Layer)


def _norm(size: int, config: Any) -> Any:
    return qwen3.RMSNorm(
        size,
        norm_eps=config.norm_eps,
        rngs=nnx.Rngs(0),
        shd_config=config.shd_config,
        dtype=config.dtype,
        param_dtype=config.param_dtype,
    )
