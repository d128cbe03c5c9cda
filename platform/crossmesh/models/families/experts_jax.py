"""A mixture of experts on a mesh: every device sends its own sequences through its part of each expert.

A family's own file says how tokens choose (`_route`) and what an expert's gate goes through. Imported by workers only.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec

from crossmesh.hardware.mesh import BATCH_AXES
from crossmesh.models.architecture import Experts
from crossmesh.models.jax.sharding_jax import STREAM, constrain, context_mesh, gathered

_AXES = {"router": ("fsdp", None), "gate_up": (None, None, "fsdp", "tp"), "down": (None, "tp", "fsdp")}
"""How matrices lie, as `placement.py` has them: whole experts, their inner features over tp."""
_STREAM, _WHOLE = PartitionSpec(BATCH_AXES, None, None), PartitionSpec()
_SPECS = {"gate_up": PartitionSpec(None, None, None, "tp"), "down": PartitionSpec(None, "tp", None)}
"""How a device takes them: gathered over fsdp. What is not here is whole."""


class MixtureOfExperts(nnx.Module):
    """Router and experts: `router` [D, E], `gate_up` [2, E, D, F] and `down` [E, F, D]."""

    names: tuple[str, ...] = ("router", "gate_up", "down")
    """Its arrays."""
    activation: Callable[[Any], Any] = staticmethod(nnx.silu)
    """What the gate goes through."""

    def __init__(self, experts: Experts, hidden: int, dtype: Any) -> None:
        count, ffn = experts.count, experts.ffn
        shapes = {"router": (hidden, count), "gate_up": (2, count, hidden, ffn), "down": (count, ffn, hidden)}
        self.router, self.gate_up, self.down = (
            nnx.Param(jnp.zeros(shape, dtype), out_sharding=_AXES[name]) for name, shape in shapes.items()
        )
        self.per_token, self.normalized = experts.per_token, experts.normalized
        self.makes_whole = False
        """Whether its layer leaves it to this module to have its weights gathered again in the backward pass."""

    def __call__(self, stream: Any, normed: Any) -> Any:
        """What the experts add [B, T, D]: chosen by `stream`, computed of `normed`, both [B, T, D]."""
        weights = {name: getattr(self, name).get_value() for name in self.names}
        compute = self._on_mesh
        if self.makes_whole and context_mesh().size > 1:
            compute = jax.checkpoint(compute)
        return compute(stream, normed, *weights.values())

    def _on_mesh(self, stream: Any, normed: Any, *weights: Any) -> Any:
        """Every device sends its own sequences through its part of each expert; the parts are summed over tp."""
        mesh = context_mesh()
        if mesh.size <= 1:
            return self._compute(stream, normed, *weights)
        whole = (gathered(weight, _AXES[name]) if name in _AXES else weight for name, weight in zip(self.names, weights, strict=True))
        specs = (_STREAM, _STREAM, *(_SPECS.get(name, _WHOLE) for name in self.names))

        def summed(*arguments: Any) -> Any:
            return jax.lax.psum(self._compute(*arguments), "tp")

        mixed = jax.shard_map(summed, mesh=mesh, in_specs=specs, out_specs=_STREAM, check_vma=False)
        rows = len(stream)
        fill = -rows % prod(mesh.shape[axis] for axis in BATCH_AXES)  # A probe has fewer sequences than a large mesh has places.
        stream, normed = (jnp.pad(array, ((0, fill), (0, 0), (0, 0))) for array in (stream, normed))
        return constrain(mixed(stream, normed, *whole)[:rows], *STREAM)

    def _compute(self, stream: Any, normed: Any, *weights: Any) -> Any:
        held = dict(zip(self.names, weights, strict=True))
        width = stream.shape[-1]
        chosen, shares = self._route(stream.reshape(-1, width), held)
        mixed = mix(normed.reshape(-1, width), chosen, shares, held["gate_up"], held["down"], type(self).activation)
        return mixed.reshape(stream.shape)

    def _route(self, stream: Any, held: dict[str, Any]) -> tuple[Any, Any]:
        """Experts [N, K] of each token of `stream` [N, D], and the share [N, K] that each has in the sum."""
        return self._chosen(stream @ held["router"])

    def _chosen(self, scores: Any) -> tuple[Any, Any]:
        """The likeliest experts by `scores` [N, E] and their shares, float32."""
        likely, chosen = jax.lax.top_k(jax.nn.softmax(scores.astype(jnp.float32), axis=-1), self.per_token)
        return chosen, likely / likely.sum(axis=-1, keepdims=True) if self.normalized else likely


def mix(x: Any, chosen: Any, shares: Any, gate_up: Any, down: Any, activation: Callable[[Any], Any]) -> Any:
    """Sum of the `chosen` experts [N, K] of each token of `x` [N, D], each times its share [N, K]; returns [N, D].

    Tokens are sorted by expert, so that each expert is one product of a stretch of them (`ragged_dot`).
    """
    tokens, used = chosen.shape
    order = jnp.argsort(chosen.reshape(-1))
    sizes = jnp.bincount(chosen.reshape(-1), length=len(down))
    rows = x[order // used]
    inner = activation(jax.lax.ragged_dot(rows, gate_up[0], sizes)) * jax.lax.ragged_dot(rows, gate_up[1], sizes)
    outputs = jax.lax.ragged_dot(inner, down, sizes) * shares.reshape(-1)[order][:, None]
    return outputs[jnp.argsort(order)].reshape(tokens, used, -1).sum(axis=1).astype(x.dtype)
