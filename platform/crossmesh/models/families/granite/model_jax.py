"""Granite of the modules of Tunix's Llama 3, which has no multipliers. Importing this imports Tunix: workers only."""

from typing import Any

import jax.numpy as jnp
from tunix.models.llama3 import model as llama3

from crossmesh.models.architecture import Architecture
from crossmesh.models.families.llama.model_jax import Llama, make_llama
from crossmesh.models.jax.layers_jax import ModelConfig


def _times(x: Any, factor: float) -> Any:
    """The product rounded once, as torch does it: JAX would round `factor` to the precision of `x` first."""
    return (x.astype(jnp.float32) * factor).astype(x.dtype)


class _Layer(llama3.DecoderLayer):
    """`residual`, what each half is multiplied by before it is added, is set on the instance."""

    def block(self, x: Any, segment_pos: Any, cache: Any, attn_mask: Any) -> Any:
        x = x + _times(self.attn.block(self.input_layernorm(x), segment_pos, cache, attn_mask)[1], self.residual)
        return None, x + _times(self.mlp(self.post_attention_layernorm(x)), self.residual)


class _Model(Llama):
    """`multipliers` are set on the instance."""

    def __call__(self, tokens: Any, positions: Any, cache: Any, segment_ids: Any) -> tuple[Any, Any]:
        hidden, cache = super().__call__(tokens, positions, cache, segment_ids)
        return _times(hidden, self.multipliers.logits), cache

    def embed(self, tokens: Any) -> Any:
        return _times(super().embed(tokens), self.multipliers.embedding)


def make_granite(architecture: Architecture, settings: ModelConfig) -> Any:
    """Llama with Granite's multipliers; hidden states as output, times what the logits are multiplied by."""
    model = make_llama(architecture, settings, _Model, _Layer)
    model.multipliers = architecture.multipliers
    for block in model.layers:
        block.residual = architecture.multipliers.residual
        block.attn.scale = architecture.query_scalar**-0.5
    return model
