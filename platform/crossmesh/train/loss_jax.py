"""The loss head: summed negative log-likelihood of the positions that carry loss, never the logits of the others.

Most positions of a fine-tuning batch are prompt or padding, and a vocabulary is wide: full float32 logits are the largest arrays of the
whole step. Here the loss rows are gathered and taken a block at a time, and the gradient with respect to the hidden states is made in the
same pass while the block's logits exist, so they are computed once and never stored. The number of blocks is decided by the data while
the program runs: every batch uses one compiled program and pays only for its own loss rows.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from crossmesh.models.tunix_jax import logits_of


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def summed_nll(cap: float, block: int, hidden: Any, weight: Any, targets: Any, mask: Any) -> Any:
    """Sum over rows with `mask` of -log p(target), a float32 scalar.

    `hidden` [N, D] and `weight` [V, D] in the compute precision, `targets` [N], `mask` [N] bool; `cap` caps logits (0: no cap), `block`
    is the number of rows taken at once. Differentiable in `hidden` only: the output projection belongs to the frozen base.
    """

    def body(index: Any, total: Any) -> Any:
        _, live, logits, picked = _block(cap, block, index, order, count, hidden, weight, targets)
        return total + _nll(logits, picked, live)

    order, count, blocks = _rows_with_loss(mask, block)
    return jax.lax.fori_loop(0, blocks, body, jnp.float32(0))


def _forward(cap: float, block: int, hidden: Any, weight: Any, targets: Any, mask: Any) -> tuple[Any, Any]:
    def body(index: Any, carry: Any) -> Any:
        total, gradient = carry
        rows, live, logits, picked = _block(cap, block, index, order, count, hidden, weight, targets)
        wrong = (jax.nn.softmax(logits) - picked) * live[:, None]
        if cap:
            # d tanh: 1 - tanh^2, with tanh = capped logits / cap.
            wrong = wrong * (1 - jnp.square(logits / cap))
        own = jnp.dot(wrong.astype(weight.dtype), weight, preferred_element_type=jnp.float32)
        return total + _nll(logits, picked, live), gradient.at[rows].add(own)

    order, count, blocks = _rows_with_loss(mask, block)
    total, gradient = jax.lax.fori_loop(0, blocks, body, (jnp.float32(0), jnp.zeros(hidden.shape, jnp.float32)))
    return total, gradient.astype(hidden.dtype)


def _backward(cap: float, block: int, gradient: Any, cotangent: Any) -> tuple[Any, None, None, None]:
    del cap, block
    return gradient * cotangent.astype(gradient.dtype), None, None, None


summed_nll.defvjp(_forward, _backward)


def _rows_with_loss(mask: Any, block: int) -> tuple[Any, Any, Any]:
    """Row numbers with the loss rows first, padded to whole blocks; how many carry loss; how many blocks they need."""
    order = jnp.pad(jnp.argsort(~mask, stable=True), (0, -mask.shape[0] % block))
    count = mask.sum(dtype=jnp.int32)
    return order, count, (count + block - 1) // block


def _block(cap: float, block: int, index: Any, order: Any, count: Any, hidden: Any, weight: Any, targets: Any) -> tuple[Any, Any, Any, Any]:
    """Rows of block `index`, which of them carry loss, their logits [block, V] and a mask of the target's place."""
    rows = jax.lax.dynamic_slice(order, (index * block,), (block,))
    live = index * block + jnp.arange(block) < count
    logits = logits_of(cap, weight, hidden[rows])
    # A comparison fuses with its neighbours; a one-hot array or a scatter would be stored.
    picked = jnp.arange(weight.shape[0])[None, :] == targets[rows][:, None]
    return rows, live, logits, picked


def _nll(logits: Any, picked: Any, live: Any) -> Any:
    own = jnp.sum(jnp.where(picked, logits, 0), axis=-1)
    return jnp.sum(jnp.where(live, jax.nn.logsumexp(logits, axis=-1) - own, 0))
