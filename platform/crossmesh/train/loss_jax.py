"""The loss head: sums over the positions that carry loss of what an objective makes of their logits, never the logits of the others.

Most positions of a fine-tuning batch are prompt or padding, and a vocabulary is wide: full float32 logits are the largest arrays of the
whole step. Here the loss rows are gathered and taken a block at a time, and the gradients are made in the same pass while the block's
logits exist, so they are computed once and never stored. The number of blocks is decided by the data while the program runs: every batch
uses one compiled program and pays only for its own loss rows. Every device takes the rows of its own sequences and its own part of the
vocabulary.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from crossmesh.hardware.mesh import BATCH_AXES
from crossmesh.models.jax.tunix_jax import logits_of
from crossmesh.objectives.objective import LOSS, TokenLosses

_TOKENS = PartitionSpec(BATCH_AXES, None)
_HIDDEN = PartitionSpec(BATCH_AXES, None, None)
_VOCABULARY = PartitionSpec("tp", None)
_WEIGHT_GRADIENT = PartitionSpec("tp", "fsdp")


@dataclass(frozen=True)
class LossHead:
    """What the head is compiled for."""

    mesh: Any
    cap: float
    """Caps logits; 0: no cap."""
    block: int
    """Rows of logits that a device makes at once."""
    train_weight: bool
    """Whether the output projection is trained: otherwise it gets no gradient."""
    token_losses: TokenLosses
    """The objective of a target."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def token_sums(head: LossHead, hidden: Any, weight: Any, targets: Any, mask: Any) -> Any:
    """Sum over positions with `mask` of each of `head.token_losses`, float32 scalars by name.

    `hidden` [B, T, D] and `weight` [V, D] in the compute precision, `targets` [B, T], `mask` [B, T] bool. `loss` is differentiable in
    `hidden`, and in `weight` where `head` says so; the others are not.
    """
    return _on_mesh(head, _local_sums, PartitionSpec())(hidden, weight, targets, mask)


def _forward(head: LossHead, hidden: Any, weight: Any, targets: Any, mask: Any) -> tuple[Any, Any]:
    specs = (PartitionSpec(), _HIDDEN, _WEIGHT_GRADIENT if head.train_weight else None)
    sums, *gradients = _on_mesh(head, _local_gradients, specs)(hidden, weight, targets, mask)
    return sums, gradients


def _backward(head: LossHead, gradients: Any, cotangents: Any) -> tuple[Any, Any, None, None]:
    del head
    of_hidden, of_weight = jax.tree.map(lambda gradient: gradient * cotangents[LOSS].astype(gradient.dtype), gradients)
    return of_hidden, of_weight, None, None


token_sums.defvjp(_forward, _backward)


def _on_mesh(head: LossHead, local: Any, out_specs: Any) -> Any:
    """`local` on every device: its own sequences, its part of the vocabulary at full width (which fsdp gathers once)."""
    in_specs = (_HIDDEN, _VOCABULARY, _TOKENS, _TOKENS)
    return jax.shard_map(functools.partial(local, head), mesh=head.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _local_sums(head: LossHead, hidden: Any, weight: Any, targets: Any, mask: Any) -> Any:
    rows = _Rows(head, hidden, weight, targets, mask)

    def body(index: Any, sums: Any) -> Any:
        _, mask, logits, picked = rows.block(index)
        return jax.tree.map(jnp.add, sums, _summed(head, mask, *_nll(logits, picked)))

    return jax.lax.psum(jax.lax.fori_loop(0, rows.blocks, body, _no_sums(head)), BATCH_AXES)


def _local_gradients(head: LossHead, hidden: Any, weight: Any, targets: Any, mask: Any) -> Any:
    rows = _Rows(head, hidden, weight, targets, mask)

    def body(index: Any, carry: Any) -> Any:
        sums, of_hidden, of_weight = carry
        positions, mask, logits, picked = rows.block(index)
        nll, normalizer = _nll(logits, picked)
        by_nll, by_normalizer = jax.grad(lambda *values: _summed(head, mask, *values)[LOSS], (0, 1))(nll, normalizer)
        dlogits = jnp.exp(logits - normalizer[:, None]) * (by_nll + by_normalizer)[:, None] - picked * by_nll[:, None]
        if head.cap:
            # d tanh: 1 - tanh^2, with tanh = capped logits / cap.
            dlogits = dlogits * (1 - jnp.square(logits / head.cap))
        dlogits = dlogits.astype(weight.dtype)
        of_hidden = of_hidden.at[positions].add(jnp.dot(dlogits, weight, preferred_element_type=jnp.float32))
        if of_weight is not None:
            of_weight = of_weight + jnp.dot(dlogits.T, rows.hidden[positions], preferred_element_type=jnp.float32)
        return jax.tree.map(jnp.add, sums, _summed(head, mask, nll, normalizer)), of_hidden, of_weight

    of_weight = jnp.zeros(weight.shape, jnp.float32) if head.train_weight else None
    start = (_no_sums(head), jnp.zeros(rows.hidden.shape, jnp.float32), of_weight)
    sums, of_hidden, of_weight = jax.lax.fori_loop(0, rows.blocks, body, start)
    of_hidden = jax.lax.psum(of_hidden, "tp").reshape(hidden.shape).astype(hidden.dtype)
    if of_weight is not None:
        of_weight = jax.lax.psum(of_weight, ("dcn", "data"))
        of_weight = jax.lax.psum_scatter(of_weight, "fsdp", scatter_dimension=1, tiled=True).astype(weight.dtype)
    return jax.lax.psum(sums, BATCH_AXES), of_hidden, of_weight


class _Rows:
    """The positions of a device, those with loss first, in blocks."""

    def __init__(self, head: LossHead, hidden: Any, weight: Any, targets: Any, mask: Any) -> None:
        """Every device takes as many blocks as the one with most loss rows: it would wait for that one anyway."""
        self._head, self._weight, self._targets = head, weight, targets.reshape(-1)
        self.hidden = hidden.reshape(-1, hidden.shape[-1]).astype(weight.dtype)
        mask = mask.reshape(-1)
        self._order = jnp.pad(jnp.argsort(~mask, stable=True), (0, -mask.shape[0] % head.block))
        self._count = mask.sum(dtype=jnp.int32)
        self.blocks = (jax.lax.pmax(self._count, BATCH_AXES) + head.block - 1) // head.block

    def block(self, index: Any) -> tuple[Any, Any, Any, Any]:
        """Positions of block `index`, which of them carry loss, their logits [block, V of this device], and where the target is in them."""
        size, width = self._head.block, self._weight.shape[0]
        positions = jax.lax.dynamic_slice(self._order, (index * size,), (size,))
        mask = index * size + jnp.arange(size) < self._count
        logits = logits_of(self._head.cap, self._weight, self.hidden[positions])
        tokens = jax.lax.axis_index("tp") * width + jnp.arange(width)
        # A comparison fuses with its neighbours; a one-hot array or a scatter would be stored.
        return positions, mask, logits, tokens[None, :] == self._targets[positions][:, None]


def _nll(logits: Any, picked: Any) -> tuple[Any, Any]:
    """The nll of each row of a block and the logarithm of its softmax denominator, over the whole vocabulary."""
    top = jax.lax.pmax(jnp.max(logits, axis=-1), "tp")
    normalizer = top + jnp.log(jax.lax.psum(jnp.sum(jnp.exp(logits - top[:, None]), axis=-1), "tp"))
    own = jax.lax.psum(jnp.sum(jnp.where(picked, logits, 0), axis=-1), "tp")
    return normalizer - own, normalizer


def _summed(head: LossHead, mask: Any, nll: Any, normalizer: Any) -> dict[str, Any]:
    """The losses of a block, summed over the rows with `mask`."""
    return {name: jnp.sum(jnp.where(mask, values, 0)) for name, values in head.token_losses(nll, normalizer).items()}


def _no_sums(head: LossHead) -> dict[str, Any]:
    scalar = jnp.float32(0)
    return dict.fromkeys(head.token_losses(scalar, scalar), scalar)
