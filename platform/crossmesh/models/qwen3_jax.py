"""Tunix's Qwen 3 as the Hugging Face model computes it. Importing this imports Tunix: workers only."""

from typing import Any

from flax import nnx
from tunix.models.qwen3 import model as qwen3

from crossmesh.models.architecture import Architecture
from crossmesh.models.dense_jax import DenseAttention, qwen_config, set_up_dense
from crossmesh.models.layers_jax import HiddenStates, Settings


class _Attention(DenseAttention, qwen3.Attention):
    def project(self, x: Any) -> tuple[Any, Any, Any]:
        query, key, value = super().project(x)
        return self.q_norm(query), self.k_norm(key), value


class _Model(HiddenStates, qwen3.Qwen3):
    pass


def make_qwen3(architecture: Architecture, settings: Settings) -> Any:
    """Tunix's Qwen 3 with theta and windows, hidden states as output."""
    model = qwen3.Qwen3(qwen_config(qwen3, architecture, settings), rngs=nnx.Rngs(0))
    return set_up_dense(model, architecture, settings, _Model, _Attention, qwen3.Einsum)
