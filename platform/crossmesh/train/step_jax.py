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
from crossmesh.data.batches import ARRAYS
from crossmesh.models.jax.tunix_jax import AbstractModel, hidden_states, output_weight
from crossmesh.models.lora_masks import step_key
from crossmesh.objectives.objective import LOSS, Objective, TokenLosses
from crossmesh.train.loss_jax import LossHead, token_sums

BATCH_DTYPES = dict(zip(ARRAYS, (np.int32, np.bool_, np.int32, np.int32, np.uint32), strict=True))
"""The arrays of a `PackedBatch` that a step takes."""
Batch = Mapping[str, Any]
"""Those arrays by name, each [accumulation, sequences, length]."""


@dataclass(frozen=True)
class Program:
    """What a step is compiled for."""

    structure: AbstractModel
    objective: Objective
    mesh: Any
    loss_rows: int
    """Rows of logits that a device makes at once."""
    train_all: bool
    """Whether all weights are trained, the output projection too."""
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


def step_hyperparameters(optim: OptimSpec, seed: int, rate: float, step: int, weight: float) -> dict[str, Any]:
    """The values of a step that no program depends on; `weight` is what the objective divides the summed loss by."""
    return {
        "weight": np.float32(weight),
        "rate": np.float32(rate),
        "weight_decay": np.float32(optim.weight_decay),
        "clip_norm": np.float32(optim.clip_norm),
        "masks": step_key(seed, step),
    }


def train_step(
    program: Program, trained: Any, moments: Any, frozen: Any, batch: Batch, micro_batches: Any, hyperparameters: Mapping[str, Any]
) -> Any:
    """One AdamW step on the loss of the first `micro_batches`: new trained state, new moments, losses, gradient norm before clipping."""
    if batch["tokens"].shape[0] == 1:
        losses, gradient = _gradient_of(program, trained, frozen, batch, hyperparameters, 0)
    else:
        losses, gradient = accumulate(program, no_gradient(program, trained), trained, frozen, batch, micro_batches, hyperparameters)
    return finish(program, trained, moments, gradient, losses, hyperparameters)


def no_gradient(program: Program, trained: Any) -> Any:
    """The losses and the gradient of no micro-batch."""
    return _no_losses(program), jax.tree.map(jnp.zeros_like, trained)


def accumulate(
    program: Program, sums: Any, trained: Any, frozen: Any, batch: Batch, micro_batches: Any, hyperparameters: Mapping[str, Any]
) -> Any:
    """`sums` of losses and gradient, and those of the first `micro_batches` of `batch`."""

    def add(index: Any, sums: Any) -> Any:
        return jax.tree.map(jnp.add, sums, _gradient_of(program, trained, frozen, batch, hyperparameters, index))

    return jax.lax.fori_loop(0, micro_batches, add, sums)


def finish(program: Program, trained: Any, moments: Any, gradient: Any, losses: Any, hyperparameters: Mapping[str, Any]) -> Any:
    """AdamW's update by the gradient of a whole step; returns what `train_step` does."""
    norm = optax.global_norm(gradient)
    if program.clip:
        gradient = jax.tree.map(lambda one: one * jnp.minimum(1, hyperparameters["clip_norm"] / norm), gradient)
    update, moments = program.update(gradient, moments, trained, hyperparameters["weight_decay"])
    return jax.tree.map(lambda value, change: value - hyperparameters["rate"] * change, trained, update), moments, losses, norm


def _gradient_of(
    program: Program, trained: Any, frozen: Any, batch: Batch, hyperparameters: Mapping[str, Any], index: Any
) -> tuple[Any, Any]:
    """Losses of micro-batch `index` as their part of the step's, and the gradient of `loss`."""
    micro = {name: array[index] for name, array in batch.items()}

    def losses(values: Any) -> tuple[Any, Any]:
        sums = summed_losses(program, values, frozen, micro, hyperparameters["masks"])
        parts = {name: sum_ / hyperparameters["weight"] for name, sum_ in sums.items()}
        return parts[LOSS], parts

    (_, parts), gradient = jax.value_and_grad(losses, has_aux=True)(trained)
    return parts, gradient


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
        jax.jit(functools.partial(no_gradient, program), out_shardings=(scalar, trained)),
        jax.jit(functools.partial(accumulate, program), donate_argnums=0, out_shardings=(scalar, trained)),
        jax.jit(functools.partial(finish, program), donate_argnums=(0, 1, 2), out_shardings=(trained, moments, scalar, scalar)),
    )


def mean_losses(program: Program, trained: Any, frozen: Any, batch: Batch, micro_batches: Any, weight: Any) -> Any:
    """Losses of the first `micro_batches`, without dropout, divided by `weight`."""

    def body(index: Any, sums: Any) -> Any:
        micro = {name: array[index] for name, array in batch.items()}
        return jax.tree.map(jnp.add, sums, summed_losses(program, trained, frozen, micro, None))

    sums = jax.lax.fori_loop(0, micro_batches, body, _no_losses(program))
    return {name: sum_ / weight for name, sum_ in sums.items()}


def summed_losses(program: Program, trained: Any, frozen: Any, micro: Batch, key: Any) -> dict[str, Any]:
    """What the objective sums over one micro-batch of [sequences, length] arrays; with the step's `key` a program with dropout drops."""
    sums = program.objective.loss_jax(ForwardJax(program, trained, frozen, micro, key), micro)
    return {name: sums[name] for name in (LOSS, *program.objective.metrics)}


@dataclass(frozen=True)
class ForwardJax:
    """`Forward` on JAX."""

    program: Program
    trained: Any
    frozen: Any
    micro: Batch
    key: Any
    """Of dropout; None: nothing is dropped."""

    def hidden(self) -> Any:
        """As `Forward`."""
        micro = self.micro
        masks = (micro["row_keys"], self.key) if self.program.dropout and self.key is not None else None
        arrays = (micro["tokens"], micro["positions"], micro["segment_ids"])
        return hidden_states(self.program.structure, self.trained, self.frozen, *arrays, masks)

    def output_weight(self) -> Any:
        """As `Forward`."""
        return output_weight(self.program.structure, self.trained, self.frozen)

    def token_sums(self, token_losses: TokenLosses) -> Mapping[str, Any]:
        """As `Forward`."""
        program = self.program
        cap = program.structure.architecture.logit_softcap
        head = LossHead(program.mesh, cap, program.loss_rows, program.train_all, token_losses)
        # Position t predicts t + 1: row t has target tokens[t + 1] and carries loss where loss_mask[t + 1] does. The last row has none.
        targets = jnp.roll(self.micro["tokens"], -1, axis=1)
        carries = jnp.roll(self.micro["loss_mask"].at[:, 0].set(False), -1, axis=1)
        sums: Mapping[str, Any] = token_sums(head, self.hidden(), self.output_weight(), targets, carries)
        return sums


def _no_losses(program: Program) -> dict[str, Any]:
    return dict.fromkeys((LOSS, *program.objective.metrics), jnp.float32(0))
