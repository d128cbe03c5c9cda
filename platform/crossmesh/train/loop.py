"""The one training loop: stepping, reporting, evaluation, checkpoint cadence, resuming and stopping, whatever the framework.

The same loop runs in every process of a run; the one of rank 0 leads: it alone reads and writes checkpoints' manifests, and what the others
emit nobody hears. The loop calls a `Backend` for arithmetic and knows neither Ray nor a framework; where it runs and who listens is
`launch`'s.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from crossmesh.data.batches import PackedBatch
from crossmesh.errors import CrossmeshError
from crossmesh.files import write_json
from crossmesh.train.backend import Backend, StepMetrics, TrainingSetup
from crossmesh.train.checkpoint import CheckpointStore
from crossmesh.train.events import EvaluationEvent, OnEvent, StageEvent, StepEvent, WarningEvent
from crossmesh.train.saver import Saver

Interruption = Literal["stopped", "preempted"]
"""Why a loop ends early: somebody asked for it, or a node of the run is taken away."""


class DivergedError(CrossmeshError):
    """Loss or gradient is not a finite number: training cannot go on."""


@dataclass(frozen=True)
class Plan:
    """How long to train and how often to do what else."""

    steps: int
    checkpoint_every: int
    """Steps between checkpoints; the last step gets one as well."""
    diverged: Path
    """File for the step whose loss or gradient is not a finite number."""
    checkpoint_minutes: float = 0.0
    """A checkpoint also when this long has passed since the last one; 0: never."""
    held_out: tuple[PackedBatch, ...] = ()
    """Batches that are not trained on."""
    evaluate_every: int = 0
    """Steps between evaluations of `held_out`, the last step included; 0: never."""
    missing_slices: int = 0
    """Slices of the run's mesh that this start goes on without."""


@dataclass(frozen=True)
class LoopResult:
    """What a run has done, the part before an interruption included."""

    history: tuple[StepEvent, ...]
    """Every step from the first."""
    ended: Literal["finished"] | Interruption
    """When it was interrupted, a checkpoint of the last step is stored."""


def run(
    backend: Backend,
    setup: TrainingSetup,
    batch_of: Callable[[int], PackedBatch],
    plan: Plan,
    checkpoints: CheckpointStore,
    emit: OnEvent,
    interruption: Callable[[], Interruption | None],
) -> LoopResult:
    """Train from the newest sound checkpoint, or from the beginning, to the last step or to an interruption.

    Args:
        backend: not yet initialised.
        setup: what the backend needs.
        batch_of: the batch of a step, counted from 0; a pure function, so that a resumed run sees what an uninterrupted one would.
        plan: steps and cadences.
        checkpoints: where state is kept.
        emit: hears of everything; steps of an earlier start are told again, so that a listener has the whole curve.
        interruption: asked before the first step and after each; the processes need not see one at the same time.

    Raises:
        DivergedError: loss or gradient norm is not finite; says at which step and on which rows. That step is not stored.
        CrossmeshError: a checkpoint could not be stored.
    """
    emit(StageEvent("loading the base model"))
    backend.init(setup)
    history = _resume(backend, checkpoints, plan, emit)
    start = len(history)
    cause = _agreed(backend, interruption())
    due = _Cadence(backend, plan)
    with Saver(backend, checkpoints, emit) as saver:
        while len(history) < plan.steps and cause is None:
            first = len(history) == start
            if first:
                emit(StageEvent("first step: compiling and warming up"))
            history.append(_step(backend, batch_of, len(history), plan, first))
            emit(history[-1])
            cause = _agreed(backend, interruption())
            if due(len(history)) or cause:
                saver.start(tuple(history))
            saver.poll()
            if plan.evaluate_every and _at(len(history), plan.evaluate_every, plan.steps):
                emit(EvaluationEvent(len(history), held_out_loss(backend, plan.held_out)))
    done = len(history) == plan.steps
    return LoopResult(tuple(history), "finished" if done or cause is None else cause)


class _Cadence:
    """Says after which steps a checkpoint is due; the same in all processes."""

    def __init__(self, backend: Backend, plan: Plan) -> None:
        self._backend = backend
        self._plan = plan
        self._last = time.monotonic()

    def __call__(self, step: int) -> bool:
        plan = self._plan
        due = _at(step, plan.checkpoint_every, plan.steps)
        if plan.checkpoint_minutes:  # Clocks differ between processes: the first that says so decides.
            due = self._backend.agree(time.monotonic() - self._last >= 60 * plan.checkpoint_minutes) or due
        if due:
            self._last = time.monotonic()
        return due


def _at(step: int, every: int, steps: int) -> bool:
    return step % every == 0 or step == steps


def _agreed(backend: Backend, seen: Interruption | None) -> Interruption | None:
    """What all processes make of what each has seen."""
    if not backend.agree(seen is not None):
        return None
    return "preempted" if backend.agree(seen == "preempted") else "stopped"


def _resume(backend: Backend, checkpoints: CheckpointStore, plan: Plan, emit: OnEvent) -> list[StepEvent]:
    """Load the newest sound checkpoint into `backend` and return the steps done so far."""
    leads = backend.rank == 0
    found = checkpoints.newest(lambda text: emit(WarningEvent(text))) if leads else None
    backend.agree(True)  # Nobody goes on before the leading process has looked.
    found = found if leads else checkpoints.announced()
    if found is not None:
        backend.load_state(found.state)
    backend.agree(True)  # All have read.
    if leads:
        checkpoints.tidy()
    if found is None:
        return []
    emit(StageEvent(f"continuing after step {found.step} of {plan.steps}"))
    for event in found.history:
        emit(event)
    return list(found.history)


def _step(backend: Backend, batch_of: Callable[[int], PackedBatch], index: int, plan: Plan, first: bool) -> StepEvent:
    """Take step `index`, counted from 0."""
    start = time.perf_counter()
    batch = batch_of(index)
    metrics = backend.step(batch)
    seconds = time.perf_counter() - start
    if not (math.isfinite(metrics.loss) and math.isfinite(metrics.grad_norm)):
        raise _diverged(metrics, index + 1, batch, plan.diverged, write=backend.rank == 0)
    return StepEvent(
        step=index + 1,
        steps=plan.steps,
        loss=metrics.loss,
        grad_norm=metrics.grad_norm,
        learning_rate=metrics.learning_rate,
        loss_tokens=metrics.loss_tokens,
        objective=metrics.objective,
        real_tokens=batch.real_tokens,
        padded_tokens=batch.padded_tokens,
        seconds=seconds,
        first=first,
        missing_slices=plan.missing_slices,
    )


def _diverged(metrics: StepMetrics, step: int, batch: PackedBatch, record: Path, *, write: bool) -> DivergedError:
    """Return the error that names the step and the file in which it is written down; the leading process writes it."""
    if write:
        values = asdict(metrics)
        values |= values.pop("objective")
        figures = {name: value if math.isfinite(value) else str(value) for name, value in values.items()}
        write_json(record, {"step": step, "row_ids": list(batch.row_ids), **figures})
    shown = ", ".join(batch.row_ids[:8]) + (f" and {len(batch.row_ids) - 8} more" if len(batch.row_ids) > 8 else "")
    return DivergedError(
        f"Training diverged at step {step}: loss {metrics.loss}, gradient norm {metrics.grad_norm}. Rows of the step: {shown}; "
        f"all are in {record}. Lower optim.learning_rate, set optim.clip_norm, or look at these rows; checkpoints "
        "of earlier steps are kept."
    )


def held_out_loss(backend: Backend, batches: Sequence[PackedBatch]) -> float:
    """Mean loss over all loss tokens of `batches`, in nats."""
    parts = [backend.evaluate(batch) for batch in batches]
    return sum(part.loss * part.loss_tokens for part in parts) / sum(part.loss_tokens for part in parts)


def steady(history: Sequence[StepEvent], rate: Callable[[StepEvent], float]) -> float:
    """Median of `rate` over the `steady_steps`."""
    return median(rate(event) for event in steady_steps(history))


def steady_steps(history: Sequence[StepEvent]) -> list[StepEvent]:
    """Steps but the first of each start, which compile (those, when there are no others), on the most slices that any of them had."""
    warm = [event for event in history if not event.first] or list(history)
    fewest = min(event.missing_slices for event in warm)
    return [event for event in warm if event.missing_slices == fewest]
