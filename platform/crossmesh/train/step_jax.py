"""One optimizer step and one loss on JAX: pure functions of arrays, to be jitted by the backend and by a planner alike.

What trials vary without changing the program (learning rate, warm-up, weight decay, clipping norm, seed) comes in as values. A batch is
padded to the most micro-batches that a step can have and says how many are real, so that every batch of one width runs the one program.
A step with micro-batches of several widths is taken in parts: `accumulate` for each width, then `finish`.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from crossmesh.config.training import OptimSpec
from crossmesh.models.jax.tunix_jax import AbstractModel, hidden_states, output_weight
from crossmesh.models.lora_masks import step_key
from crossmesh.train.loss_jax import LossHead, summed_nll

BATCH_DTYPES = {"tokens": np.int32, "loss_mask": np.bool_, "positions": np.int32, "segment_ids": np.int32, "row_keys": np.uint32}
"""The arrays of a `PackedBatch` that a step takes."""
Batch = Mapping[str, Any]
"""Those arrays by name, each [accumulation, sequences, length]."""


@dataclass(frozen=True)
class Program:
    """What a step is compiled for."""

    structure: AbstractModel
    head: LossHead
    dropout: bool
    beta1: float
    beta2: float
    epsilon: float
    clip: bool
    """Whether gradients are clipped, to the knob `clip_norm`."""

    def update(self, gradient: Any, moments: Any, trained: Any, weight_decay: Any) -> Any:
        """AdamW but for the learning rate, which multiplies the update."""
        adam = optax.scale_by_adam(self.beta1, self.beta2, self.epsilon)
        update, moments = adam.update(gradient, moments)
        return jax.tree.map(lambda change, value: change + weight_decay * value, update, trained), moments


def step_hyperparameters(optim: OptimSpec, seed: int, rate: float, step: int) -> dict[str, Any]:
    """The values of a step that no program depends on."""
    return {
        "rate": np.float32(rate),
        "weight_decay": np.float32(optim.weight_decay),
        "clip_norm": np.float32(optim.clip_norm),
        "masks": step_key(seed, step),
    }


def train_step(
    program: Program, trained: Any, moments: Any, frozen: Any, batch: Batch, micro_batches: Any, hyperparameters: Mapping[str, Any]
) -> Any:
    """One AdamW step on the mean loss of the first `micro_batches`: new trained state, new moments, loss, gradient norm before clipping."""
    total = _loss_tokens(batch)
    if batch["tokens"].shape[0] == 1:
        loss, gradient = _gradient_of(program, trained, frozen, batch, total, hyperparameters, 0)
    else:
        loss, gradient = accumulate(program, no_gradient(trained), trained, frozen, batch, micro_batches, total, hyperparameters)
    return finish(program, trained, moments, gradient, loss, hyperparameters)


def no_gradient(trained: Any) -> Any:
    """The loss and the gradient of no micro-batch."""
    return jnp.float32(0), jax.tree.map(jnp.zeros_like, trained)


def accumulate(
    program: Program, sums: Any, trained: Any, frozen: Any, batch: Batch, micro_batches: Any, total: Any, hyperparameters: Mapping[str, Any]
) -> Any:
    """`sums` of loss and gradient, and those of the first `micro_batches` of `batch`, in a step that has `total` loss tokens."""

    def add(index: Any, sums: Any) -> Any:
        return jax.tree.map(jnp.add, sums, _gradient_of(program, trained, frozen, batch, total, hyperparameters, index))

    return jax.lax.fori_loop(0, micro_batches, add, sums)


def finish(program: Program, trained: Any, moments: Any, gradient: Any, loss: Any, hyperparameters: Mapping[str, Any]) -> Any:
    """AdamW's update by the gradient of a whole step; returns what `train_step` does."""
    norm = optax.global_norm(gradient)
    if program.clip:
        gradient = jax.tree.map(lambda one: one * jnp.minimum(1, hyperparameters["clip_norm"] / norm), gradient)
    update, moments = program.update(gradient, moments, trained, hyperparameters["weight_decay"])
    return jax.tree.map(lambda value, change: value - hyperparameters["rate"] * change, trained, update), moments, loss, norm


def _gradient_of(
    program: Program, trained: Any, frozen: Any, batch: Batch, total: Any, hyperparameters: Mapping[str, Any], index: Any
) -> tuple[Any, Any]:
    """Loss of micro-batch `index` as its part of the step's mean, and its gradient."""
    micro = {name: array[index] for name, array in batch.items()}
    found: tuple[Any, Any] = jax.value_and_grad(
        lambda values: summed_loss(program, values, frozen, micro, hyperparameters["masks"]) / total
    )(trained)
    return found


def jitted_step(program: Program, trained: Any, moments: Any, mesh: Any) -> Any:
    """`train_step` of `program` as it is compiled, where `trained` and `moments` are the shardings of what it takes and gives back."""
    scalar = NamedSharding(mesh, PartitionSpec())
    step = functools.partial(train_step, program)
    return jax.jit(step, donate_argnums=(0, 1), out_shardings=(trained, moments, scalar, scalar))


@dataclass(frozen=True)
class Parts:
    """`train_step` in parts, each compiled when it is first called."""

    begin: Any
    """`no_gradient`."""
    accumulate: Any
    """Compiled for every width."""
    finish: Any


def jitted_parts(program: Program, trained: Any, moments: Any, mesh: Any) -> Parts:
    """The parts of a step of `program`; arguments as `jitted_step`'s."""
    scalar = NamedSharding(mesh, PartitionSpec())
    return Parts(
        jax.jit(no_gradient, out_shardings=(scalar, trained)),
        jax.jit(functools.partial(accumulate, program), donate_argnums=0, out_shardings=(scalar, trained)),
        jax.jit(functools.partial(finish, program), donate_argnums=(0, 1, 2), out_shardings=(trained, moments, scalar, scalar)),
    )


def mean_loss(program: Program, trained: Any, frozen: Any, batch: Batch, micro_batches: Any) -> Any:
    """Mean loss of the first `micro_batches`, without dropout."""

    def body(index: Any, sum_: Any) -> Any:
        return sum_ + summed_loss(program, trained, frozen, {name: array[index] for name, array in batch.items()}, None)

    return jax.lax.fori_loop(0, micro_batches, body, jnp.float32(0)) / _loss_tokens(batch)


def summed_loss(program: Program, trained: Any, frozen: Any, micro: Batch, key: Any) -> Any:
    """Summed nll of one micro-batch of [sequences, length] arrays; with the step's `key` a program that has dropout drops."""
    structure, segments = program.structure, micro["segment_ids"]
    masks = (micro["row_keys"], key) if program.dropout and key is not None else None
    hidden = hidden_states(structure, trained, frozen, micro["tokens"], micro["positions"], segments, masks)
    # Position t predicts t + 1: row t has target tokens[t + 1] and carries loss where loss_mask[t + 1] does. The last row has none.
    targets = jnp.roll(micro["tokens"], -1, axis=1)
    carries = jnp.roll(micro["loss_mask"].at[:, 0].set(False), -1, axis=1)
    return summed_nll(program.head, hidden, output_weight(structure, trained, frozen), targets, carries)


def _loss_tokens(batch: Batch) -> Any:
    return batch["loss_mask"][:, :, 1:].sum(dtype=jnp.float32)
