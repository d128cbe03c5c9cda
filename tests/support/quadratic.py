"""The training loop on a backend that takes no time: momentum descent on a quadratic that depends on the rows of each step.

Several processes of a run are threads here, each with a backend of its own; the `Group` is what they agree through.
"""

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import OptimSpec
from crossmesh.data.batches import PackedBatch, Row
from crossmesh.train.backend import FloatArray, Saving, StepMetrics, TrainingSetup
from crossmesh.train.checkpoint import CheckpointStore
from crossmesh.train.events import Event, StageEvent, StepEvent
from crossmesh.train.loop import Interruption, LoopResult, Plan, run
from crossmesh.train.schedule import learning_rate
from random_rows import unpacked

STEPS = 12
_PATIENCE_S = 120
"""Long enough for a thread that a busy machine leaves waiting."""


class Group:
    """Processes that decide together."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self._barrier = threading.Barrier(size)
        self._flags = [False] * size

    def any(self, rank: int, flag: bool) -> bool:
        self._barrier.wait(_PATIENCE_S)
        self._flags[rank] = flag
        self._barrier.wait(_PATIENCE_S)
        return any(self._flags)


class QuadraticBackend:
    """Fits a vector to the mean token of each batch; state is the vector, its momentum and the step count."""

    def __init__(self, rank: int = 0, group: Group | None = None, saving: Saving = lambda: None) -> None:
        self.rank = rank
        self.group = group or Group()
        self.saving = saving
        self.poisoned: int | None = None

    def init(self, setup: TrainingSetup) -> None:
        self.optim = setup.optim
        self.weight = np.zeros(4, np.float32)
        self.momentum = np.zeros(4, np.float32)
        self.count = 0

    def _residual(self, batch: PackedBatch) -> FloatArray:
        return (self.weight - np.float32(batch.tokens[batch.segment_ids > 0].mean() / 10)).astype(np.float32)

    def step(self, batch: PackedBatch) -> StepMetrics:
        residual = self._residual(batch)
        rate = learning_rate(self.count, self.optim)
        self.momentum = (np.float32(0.9) * self.momentum + residual).astype(np.float32)
        self.weight = (self.weight - np.float32(rate) * self.momentum).astype(np.float32)
        self.count += 1
        loss = math.nan if self.count == self.poisoned else float((residual**2).sum())
        return StepMetrics(loss, float(np.linalg.norm(residual)), rate, batch.loss_tokens)

    def evaluate(self, batch: PackedBatch) -> StepMetrics:
        return StepMetrics(float((self._residual(batch) ** 2).sum()), 0.0, 0.0, batch.loss_tokens)

    def agree(self, flag: bool) -> bool:
        return self.group.any(self.rank, flag)

    def save_state(self, folder: Path) -> Saving:
        """Each process writes a file of its own, in the background; the first one waits for all."""
        state = {"weight": self.weight.copy(), "momentum": self.momentum.copy(), "count": self.count}
        everybody = [folder / f"state-{rank}.npz" for rank in range(self.group.size)]

        def write() -> None:
            self.saving()
            partial = everybody[self.rank].with_suffix(".part.npz")
            np.savez(partial, **state)
            partial.rename(everybody[self.rank])
            while self.rank == 0 and not all(file.exists() for file in everybody):
                time.sleep(0.001)

        return write

    def load_state(self, folder: Path) -> None:
        with np.load(folder / f"state-{self.rank}.npz") as state:
            self.weight, self.momentum, self.count = state["weight"], state["momentum"], int(state["count"])

    def export(self) -> dict[str, FloatArray]:
        return {"w": self.weight}


def batch_of(step: int) -> PackedBatch:
    """Two rows of five tokens, three of which carry loss."""
    rows = [
        Row(f"row-{step}-{index}", np.arange(step + index, step + index + 5, dtype=np.int32), np.array([False, False, True, True, True]))
        for index in range(2)
    ]
    return unpacked(rows, 1, 8)


@dataclass
class Training:
    """One start of a run and what came of it."""

    folder: Path
    stop_after: int | None = None
    """Step at which the last process sees `cause`."""
    cause: Interruption = "stopped"
    identity: str = "me"
    every: int = 5
    minutes: float = 0.0
    keep: int = 2
    poisoned: int | None = None
    saving: Saving = lambda: None
    held_out: tuple[PackedBatch, ...] = ()
    target: str = ""
    processes: int = 1
    events: list[Event] = field(default_factory=list)
    """What the leading process said."""
    backend: QuadraticBackend = field(default_factory=QuadraticBackend)
    """Of the leading process."""

    def run(self) -> LoopResult:
        """Train; what it ends with is the same in all processes."""
        group = Group(self.processes)
        with ThreadPoolExecutor(self.processes) as pool:
            results = list(pool.map(lambda rank: self._process(rank, group), range(self.processes)))
        assert all([event.loss for event in one.history] == [event.loss for event in results[0].history] for one in results)
        assert {one.ended for one in results} == {results[0].ended}
        return results[0]

    def _process(self, rank: int, group: Group) -> LoopResult:
        backend = QuadraticBackend(rank, group, self.saving)
        if rank == 0:
            self.backend = backend
        done = {"steps": 0}

        def emit(event: Event) -> None:
            if rank == 0:
                self.events.append(event)
            if isinstance(event, StepEvent):
                done["steps"] = event.step
            if isinstance(event, StageEvent) and event.text.startswith("first step"):
                backend.poisoned = self.poisoned

        def interruption() -> Interruption | None:
            last = rank == self.processes - 1
            return self.cause if last and self.stop_after is not None and done["steps"] >= self.stop_after else None

        setup = TrainingSetup.of(ExperimentSpec(optim=OptimSpec(steps=STEPS, learning_rate=0.1)), self.folder, self.folder)
        diverged = self.folder.parent / "diverged.json"
        plan = Plan(STEPS, self.every, diverged, self.minutes, self.held_out, self.every if self.held_out else 0)
        store = CheckpointStore(self.folder, self.identity, self.keep, target=self.target)
        return run(backend, setup, batch_of, plan, store, emit, interruption)


def curve(result: LoopResult) -> list[tuple[int, float, float, float]]:
    """What a run has computed, step by step."""
    return [(event.step, event.loss, event.grad_norm, event.learning_rate) for event in result.history]


def names(folder: Path) -> list[str]:
    """What lies in a folder."""
    return sorted(entry.name for entry in folder.iterdir())
