"""Tunix's Qwen 3 as the Hugging Face model computes it. Importing this imports Tunix: workers only."""

from typing import Any

from flax import nnx
from tunix.models.qwen3 import model as qwen3

from crossmesh.models.architecture import Architecture
from crossmesh.models.families.dense_jax import DenseAttention, qwen_config, set_up_dense
from crossmesh.models.families.experts_jax import MixtureOfExperts
from crossmesh.models.jax.layers_jax import DTYPES, HiddenStates, ModelConfig


class _Attention(DenseAttention, qwen3.Attention):
    def project(self, x: Any) -> tuple[Any, Any, Any]:
        query, key, value = super().project(x)
        return self.q_norm(query), self.k_norm(key), value


class _ExpertLayer(qwen3.DecoderLayer):
    """Tunix's layer with our experts: its own are computed densely or dispatched by kernels that no test here reaches."""

    def block(self, x: Any, segment_pos: Any, cache: Any, attn_mask: Any, segment_ids: Any = None) -> Any:
        x = x + self.attn.block(self.input_layernorm(x), segment_pos, cache, attn_mask, segment_ids)[1]
        normed = self.post_attention_layernorm(x)
        return None, x + self.mlp(normed, normed)


class _Model(HiddenStates, qwen3.Qwen3):
    pass


def make_qwen3(architecture: Architecture, settings: ModelConfig) -> Any:
    """Tunix's Qwen 3 with theta and windows, hidden states as output; with experts where the architecture has them."""
    model = _Model(qwen_config(qwen3, architecture, settings), rngs=nnx.Rngs(0))
    if architecture.experts:
        for block in model.layers:
            block.mlp = MixtureOfExperts(architecture.experts, architecture.hidden, DTYPES[settings.dtype])
            block.mlp.makes_whole = settings.remat == "none"
    layer = _ExpertLayer if architecture.experts else None
    return set_up_dense(model, architecture, settings, _Attention, qwen3.Einsum, layer)
