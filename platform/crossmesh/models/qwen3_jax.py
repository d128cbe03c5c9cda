"""Tunix's Qwen 3 as the Hugging Face model computes it. Importing this imports Tunix: workers only."""

from typing import Any

from flax import nnx
from tunix.models.qwen3 import model as qwen3

from crossmesh.models.architecture import Architecture
from crossmesh.models.dense_jax import DenseAttention, check_rope, set_up_dense
from crossmesh.models.layers_jax import DTYPES, HiddenStates, Settings, activations


class _Attention(DenseAttention, qwen3.Attention):
    def project(self, x: Any) -> tuple[Any, Any, Any]:
        query, key, value = super().project(x)
        return self.q_norm(query), self.k_norm(key), value


class _Model(HiddenStates, qwen3.Qwen3):
    pass


def make_qwen3(architecture: Architecture, settings: Settings) -> Any:
    """Tunix's Qwen 3 with theta and windows, hidden states as output."""
    check_rope(architecture)
    layer, dtype = architecture.layers[0], DTYPES[settings.dtype]
    config = qwen3.ModelConfig(
        num_layers=len(architecture.layers),
        vocab_size=architecture.vocab,
        embed_dim=architecture.hidden,
        hidden_dim=architecture.ffn,
        num_heads=layer.heads,
        head_dim=layer.head_dim,
        num_kv_heads=layer.kv_heads,
        rope_theta=int(layer.rope.theta),
        norm_eps=architecture.norm_epsilon,
        use_tied_embedding=architecture.tied,
        shd_config=activations(qwen3.ShardingConfig.get_default_sharding()),
        dtype=dtype,
        param_dtype=dtype,
    )
    return set_up_dense(qwen3.Qwen3(config, rngs=nnx.Rngs(0)), architecture, settings, _Model, _Attention, qwen3.Einsum)
