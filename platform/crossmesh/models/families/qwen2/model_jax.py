"""Tunix's Qwen 2 as the Hugging Face model computes it. Importing this imports Tunix: workers only."""

from typing import Any

from flax import nnx
from tunix.models.qwen2 import model as qwen2

from crossmesh.models.architecture import Architecture
from crossmesh.models.families.dense_jax import DenseAttention, qwen_config, set_up_dense
from crossmesh.models.jax.layers_jax import HiddenStates, ModelConfig


class _Attention(DenseAttention, qwen2.Attention):
    def project(self, x: Any) -> tuple[Any, Any, Any]:
        projected = zip(super().project(x), (self.q_bias, self.k_bias, self.v_bias), strict=True)
        query, key, value = (one + bias.get_value().astype(one.dtype).reshape(one.shape[2:]) for one, bias in projected)
        return query, key, value


class _Layer(qwen2.DecoderLayer):
    """Tunix's layer given positions, as those of the other families are: its own is given sines and cosines that its model made."""

    def block(self, x: Any, positions: Any, cache: Any, segment_ids: Any) -> Any:
        x = x + self.attn.block(self.input_layernorm(x), positions, cache, segment_ids)[1]
        return None, x + self.mlp(self.post_attention_layernorm(x))


class _Model(HiddenStates, qwen2.Qwen2):
    pass


def make_qwen2(architecture: Architecture, settings: ModelConfig) -> Any:
    """Tunix's Qwen 2 with windows, hidden states as output."""
    model = _Model(qwen_config(qwen2, architecture, settings), rngs=nnx.Rngs(0))
    return set_up_dense(model, architecture, settings, _Attention, qwen2.Einsum, _Layer)
