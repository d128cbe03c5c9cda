"""A real training run, timed from outside: how much of it after start-up is not spent in `backend.step`.

The trial runs as `crossmesh finetune` runs it: Ray Train, the one loop, checkpoints, events, tracking with system metrics. A step's own
event says how long batch building and `backend.step` took together; what building takes is measured here, by building the same batches
again.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.config.training import BackendSpec, BatchSpec, CheckpointSpec, DataSpec, ModelSpec, OptimSpec, PackingSpec
from crossmesh.console import Stage
from crossmesh.data.chat import ChatTokenizer
from crossmesh.data.packing import build_batch, plan_steps
from crossmesh.data.sources import load_rows
from crossmesh.track.trackers import open_tracker
from crossmesh.train.events import Event, StepEvent
from crossmesh.trial.trial import cache_folder, fetch, prepare, run_trial


def outside_share(spec: ExperimentSpec, backend: str, weights: str, steps: int, folder: Path, stage: Stage) -> dict[str, Any]:
    """Train `steps` steps on `backend` under `folder`, in the open Ray session, and return the share and what it is made of."""
    tracking = replace(spec.tracking, uri="", trackers=TrackingSpec().trackers)
    own = replace(_spec(backend, weights, steps), storage=StorageSpec(str(folder)), tracking=tracking)
    model = fetch(replace(own, storage=spec.storage))
    clock = _Clock(stage)
    tracker = open_tracker(own.tracking, own.storage)
    trial = run_trial(own, prepare(own, model, tracker), tracker, clock.hear)
    ended = time.perf_counter()
    later = [event for event in trial.result.history if not event.first]
    building = _building_s(own, model.path, len(later))
    inside = sum(event.seconds for event in later) - building
    return {
        "outside_share": 1 - inside / clock.wall_s,
        "wall_s": clock.wall_s,
        "in_step_s": inside,
        "building_batches_s": building,
        "between_steps_s": clock.wall_s - inside - building,
        "after_the_last_step_s": ended - clock.last,
        "steps": len(later),
        "checkpoints": (steps - 1) // own.checkpoint.every_steps,
        "tokens_per_s": trial.result.tokens_per_s,
    }


class _Clock:
    """When the steps of a run were heard of, in the driver."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._first = 0.0
        self.last = 0.0

    def hear(self, event: Event) -> None:
        """Note the time of a step and show it."""
        if isinstance(event, StepEvent):
            self.last = time.perf_counter()
            if event.first:
                self._first = self.last
        self._stage.hear(event)

    @property
    def wall_s(self) -> float:
        """From the end of the first step to the end of the last; good to the driver's polling, a fifth of a second."""
        return self.last - self._first


def _spec(backend: str, weights: str, steps: int) -> ExperimentSpec:
    return ExperimentSpec(
        name="overhead",
        model=ModelSpec(weights=weights),
        data=DataSpec(max_length=384),
        batch=BatchSpec(size=2, micro=1),
        packing=PackingSpec("stream"),
        optim=OptimSpec(steps=steps),
        backend=BackendSpec(backend),
        checkpoint=CheckpointSpec(every_steps=max(1, steps // 2)),
    )


def _building_s(spec: ExperimentSpec, model: Path, count: int) -> float:
    """Seconds that building the last `count` batches takes."""
    tokenizer = ChatTokenizer(model)
    rows = load_rows(spec.data, tokenizer, cache_folder(spec)).rows
    plans = plan_steps([len(row.tokens) for row in rows], spec)[-count:]
    start = time.perf_counter()
    for plan in plans:
        build_batch(plan, rows, spec.micro_batch * spec.mesh_shape.dp_size, spec.sequence_length, tokenizer.pad_id)
    return time.perf_counter() - start
