"""The one training loop: stepping, reporting, evaluation, checkpoint cadence, resuming and stopping, whatever the framework.

It calls a `Backend` for arithmetic and knows neither Ray nor a framework; where the loop runs and who listens is `launch`'s.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from crossmesh.data.batches import PackedBatch
from crossmesh.errors import CrossmeshError
from crossmesh.train.backend import Backend, StepMetrics, TrainingSetup
from crossmesh.train.checkpoint import CheckpointStore
from crossmesh.train.events import CheckpointEvent, EvaluationEvent, OnEvent, StageEvent, StepEvent, WarningEvent


class DivergedError(CrossmeshError):
    """Loss or gradient is not a finite number: training cannot go on."""


@dataclass(frozen=True)
class Plan:
    """How long to train and how often to do what else."""

    steps: int
    checkpoint_every: int
    """Steps between checkpoints; the last step gets one as well."""
    held_out: tuple[PackedBatch, ...] = ()
    """Batches that are not trained on."""
    evaluate_every: int = 0
    """Steps between evaluations of `held_out`, the last step included; 0: never."""


@dataclass(frozen=True)
class LoopResult:
    """What a run has done, the part before an interruption included."""

    history: tuple[StepEvent, ...]
    """Every step from the first."""
    finished: bool
    """False: stopped on request; a checkpoint of the last step is on disk."""


def run(
    backend: Backend,
    setup: TrainingSetup,
    batch_of: Callable[[int], PackedBatch],
    plan: Plan,
    checkpoints: CheckpointStore,
    emit: OnEvent,
    should_stop: Callable[[], bool],
) -> LoopResult:
    """Train from the newest sound checkpoint, or from the beginning, to the last step or until `should_stop`.

    Args:
        backend: not yet initialised.
        setup: what the backend needs.
        batch_of: the batch of a step, counted from 0; a pure function, so that a resumed run sees what an uninterrupted one would.
        plan: steps and cadences.
        checkpoints: where state is kept.
        emit: hears of everything; steps of an earlier start are told again, so that a listener has the whole curve.
        should_stop: asked before the first step and after each.

    Raises:
        DivergedError: loss or gradient norm is not finite; says at which step and on which rows. That step is not stored.
    """
    emit(StageEvent("loading the base model"))
    backend.init(setup)
    history = _resume(backend, checkpoints, plan, emit)
    start = len(history)
    stop = should_stop()
    while len(history) < plan.steps and not stop:
        first = len(history) == start
        if first:
            emit(StageEvent("first step: compiling and warming up"))
        history.append(_step(backend, batch_of, len(history), plan.steps, first))
        emit(history[-1])
        stop = should_stop()
        if stop or _due(len(history), plan.checkpoint_every, plan.steps):
            folder = checkpoints.save(tuple(history), backend.save_state)
            emit(CheckpointEvent(len(history), str(folder)))
        if plan.evaluate_every and _due(len(history), plan.evaluate_every, plan.steps):
            emit(EvaluationEvent(len(history), held_out_loss(backend, plan.held_out)))
    return LoopResult(tuple(history), finished=len(history) == plan.steps)


def _due(step: int, every: int, steps: int) -> bool:
    return step % every == 0 or step == steps


def _resume(backend: Backend, checkpoints: CheckpointStore, plan: Plan, emit: OnEvent) -> list[StepEvent]:
    """Load the newest sound checkpoint into `backend` and return the steps done so far."""
    found = checkpoints.newest(lambda text: emit(WarningEvent(text)))
    if found is None:
        return []
    backend.load_state(found.state)
    emit(StageEvent(f"continuing after step {found.step} of {plan.steps}"))
    for event in found.history:
        emit(event)
    return list(found.history)


def _step(backend: Backend, batch_of: Callable[[int], PackedBatch], index: int, steps: int, first: bool) -> StepEvent:
    """Take step `index`, counted from 0."""
    start = time.perf_counter()
    batch = batch_of(index)
    metrics = backend.step(batch)
    seconds = time.perf_counter() - start
    _check_finite(metrics, index + 1, batch)
    return StepEvent(
        step=index + 1,
        steps=steps,
        loss=metrics.loss,
        grad_norm=metrics.grad_norm,
        learning_rate=metrics.learning_rate,
        loss_tokens=metrics.loss_tokens,
        real_tokens=batch.real_tokens,
        seconds=seconds,
        first=first,
    )


def _check_finite(metrics: StepMetrics, step: int, batch: PackedBatch) -> None:
    if math.isfinite(metrics.loss) and math.isfinite(metrics.grad_norm):
        return
    raise DivergedError(
        f"Training diverged at step {step}: loss {metrics.loss}, gradient norm {metrics.grad_norm}. Rows of the step: "
        f"{', '.join(batch.row_ids)}. Lower optim.learning_rate, set optim.clip_norm, or look at these rows; checkpoints of earlier "
        "steps are kept."
    )


def held_out_loss(backend: Backend, batches: Sequence[PackedBatch]) -> float:
    """Mean loss over all loss tokens of `batches`, in nats."""
    parts = [backend.evaluate(batch) for batch in batches]
    return sum(part.loss * part.loss_tokens for part in parts) / sum(part.loss_tokens for part in parts)


def steady_tokens_per_s(history: Sequence[StepEvent]) -> float:
    """Median of real tokens per second over all steps but the first of each start, which compile; over all when there are no others."""
    steady = [event.tokens_per_s for event in history if not event.first]
    return median(steady or [event.tokens_per_s for event in history])
