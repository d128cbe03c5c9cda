"""Gemma 4's mixture of experts as the Hugging Face model computes it, in place of Tunix's `MoERagged`. Importing this imports Tunix.

Tunix 0.1.7 differs in three points: its router reads the experts' normed input, where transformers' reads the residual stream; it
chooses by `approx_max_k`, which on a TPU is not exact; and it turns the fused gate and up weights around in every step.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from crossmesh.models.architecture import Experts
from crossmesh.models.families.experts_jax import MixtureOfExperts


class Gemma4Experts(MixtureOfExperts):
    """With a scale of each input of the router, and of each expert."""

    names = ("router", "router_scale", "expert_scale", "gate_up", "down")
    activation = staticmethod(nnx.gelu)

    def __init__(self, experts: Experts, hidden: int, epsilon: float, dtype: Any) -> None:
        super().__init__(experts, hidden, dtype)
        self.router_scale = nnx.Param(jnp.ones((hidden,), dtype), out_sharding=("tp",))
        self.expert_scale = nnx.Param(jnp.ones((experts.count,), dtype))
        self.epsilon = epsilon

    def _route(self, stream: Any, held: dict[str, Any]) -> tuple[Any, Any]:
        """By the residual stream."""
        squares = jnp.mean(jnp.square(stream.astype(jnp.float32)), axis=-1, keepdims=True)
        normed = (stream * jax.lax.rsqrt(squares + self.epsilon)).astype(stream.dtype)
        chosen, shares = self._chosen((normed * held["router_scale"] * stream.shape[-1] ** -0.5) @ held["router"])
        return chosen, shares * held["expert_scale"][chosen]
