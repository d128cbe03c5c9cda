"""Gemma 2 of the modules of Tunix's Gemma 3: Tunix 0.1.7 has none with capped scores. Importing this imports Tunix: workers only."""

from typing import Any

from crossmesh.compat.tunix_modules import drop_norms
from crossmesh.models.architecture import Architecture
from crossmesh.models.families.gemma3.model_jax import Gemma3Attention, make_gemma3
from crossmesh.models.jax.layers_jax import ModelConfig


class _Attention(Gemma3Attention):
    def normed(self, query: Any, key: Any) -> tuple[Any, Any]:
        return query, key


def make_gemma2(architecture: Architecture, settings: ModelConfig) -> Any:
    """Gemma 3 without norms of queries and keys."""
    model = make_gemma3(architecture, settings, _Attention)
    for block in model.layers:
        drop_norms(block.attn)
    return model
