"""The first steps of finished trainings once more, interleaved: what a verdict on speed needs, which one run each cannot give.

A repeat is a run of kind `repeat` under the training that it repeats. It leaves no adapter, and nothing takes it for a trial.
"""

import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from crossmesh.cluster.session import ray_session, require_chips
from crossmesh.config.compose import restore_spec
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.fingerprint import SCIENCE_FORM, form_of
from crossmesh.errors import InputError, require
from crossmesh.metrics import TOKENS_PER_S, WALL_CLOCK
from crossmesh.track.load import load_reasons
from crossmesh.track.repeats import KIND, RATE, TAG_OF, TAG_ROUND, TAG_STEPS, repeats_by_run, sound_rounds
from crossmesh.track.tracked_run import TAG_SCIENCE, TrackedRun
from crossmesh.track.tracker import Tracker
from crossmesh.train.events import Event, LoadEvent, StepEvent
from crossmesh.train.launch import train
from crossmesh.trial.trial import Prepared, fetch, prepare

_MOST_RUNS = 12
"""Runs that are repeated together: more would take a day and correct each other away."""


@dataclass(frozen=True)
class Repeated:
    """A finished training that is repeated."""

    run_id: str
    spec: ExperimentSpec
    prepared: Prepared


@dataclass(frozen=True)
class Repeats:
    """What a sweep does with its trials once they are done."""

    count: int
    steps: int

    def add(self, tracker: Tracker, own: ExperimentSpec, run_ids: Sequence[str], say: Callable[[str], None]) -> None:
        """Repeat the trials, interleaved."""
        if run_ids:
            add_repeats(tracker, own, [tracker.run(run_id) for run_id in dict.fromkeys(run_ids)], self.count, self.steps, say)


def add_repeats(
    tracker: Tracker, own: ExperimentSpec, runs: Sequence[TrackedRun], count: int, steps: int, say: Callable[[str], None]
) -> int:
    """Repeat finished trainings, one after the other in every round, until they have `count` sound rounds together; return rounds made.

    Args:
        tracker: where the runs are.
        own: the spec of this job: its storage is where models and data are.
        runs: finished trainings.
        count: rounds wanted.
        steps: steps of each repeat.
        say: hears what happens.

    Raises `InputError` for a training that cannot be made again as it was.
    """
    ids = [run.run_id for run in runs]
    require(0 < len(runs) <= _MOST_RUNS, "repeat", f"{len(runs)} trainings", f"1 to {_MOST_RUNS} trainings: name them with runs=[a,b]")
    missing = count - sound_rounds(ids, repeats_by_run(tracker), steps)
    if missing <= 0:
        say(f"{count} interleaved repeats of each are there already")
        return 0
    session = uuid.uuid4().hex[:8]
    with ray_session(own.storage):
        repeated = [_again(tracker, own, run, steps) for run in runs]
        for number in range(1, missing + 1):
            for one, run in zip(repeated, runs, strict=True):
                say(f"repeat {number} of {missing}: {run.name} {one.run_id[:8]}, first {one.spec.optim.last_step} steps")
                reasons, rate = _repeat(tracker, one, f"{session} {number}", steps, run.name)
                say(f"  {rate:,.1f} tokens/s" + (f"; under load: {', '.join(reasons)}" if reasons else ""))
    return missing


def _again(tracker: Tracker, own: ExperimentSpec, run: TrackedRun, steps: int) -> Repeated:
    """The training's own spec, ending after its first steps, with what it needs; refused where it would not be the same training."""
    kept = restore_spec(tracker.read_json(run.run_id, "records/spec.json"))
    whole = replace(kept, storage=own.storage, tracking=own.tracking)
    model = fetch(whole)
    prepared = prepare(whole, model, tracker)
    if (form := form_of(tracker.read_json(run.run_id, "records/science.json"))) != SCIENCE_FORM:
        raise InputError(
            f"The training {run.run_id} ({run.name}) was recorded by another version of crossmesh (form {form} of the science record, not "
            f"{SCIENCE_FORM}): whether it would be the same training cannot be told. Train it again, then repeat that."
        )
    if prepared.science.digest != run.tags.get(TAG_SCIENCE):
        raise InputError(
            f"The training {run.run_id} ({run.name}) cannot be repeated: model, data or code are not what they were, so its science is "
            "another one today. Train it again, then repeat that."
        )
    done = prepared.resume.step if prepared.resume else 0
    checkpoint = replace(whole.checkpoint, every_steps=10**9, every_minutes=0.0, target="")
    mesh = replace(whole.mesh, min_dcn=0)  # On fewer slices it would be a repeat of another thing.
    short = replace(whole, optim=replace(whole.optim, stop_at=min(whole.optim.last_step, done + steps)), checkpoint=checkpoint, mesh=mesh)
    require_chips(short.hardware.slice.device, short.training_chips)
    return Repeated(run.run_id, short, prepared)


def _repeat(tracker: Tracker, one: Repeated, round_: str, steps: int, name: str) -> tuple[tuple[str, ...], float]:
    """Take the first steps, tracked; return what the load check says, and the rate."""
    tags = {TAG_OF: one.run_id, TAG_ROUND: round_, TAG_STEPS: str(steps)}
    params: dict[str, Any] = {"repeat": {"of": one.run_id, "round": round_, "steps": steps}}
    run_id = tracker.start(f"repeat {name}", KIND, parent=one.run_id, tags=tags, params=params)
    folder = one.spec.storage.path / "repeats" / run_id
    load: dict[str, float] = {}

    def on_event(event: Event) -> None:
        if isinstance(event, StepEvent):
            tracker.metrics(run_id, {TOKENS_PER_S.step: event.tokens_per_s, WALL_CLOCK.step: event.seconds}, event.step)
        elif isinstance(event, LoadEvent):
            load.update(event.values)

    status = "FAILED"
    try:
        prepared = one.prepared
        result = train(one.spec, prepared.model, folder, on_event, prepared.init_adapter, resume=prepared.resume, order=prepared.order)
        values = {RATE: result.tokens_per_s, WALL_CLOCK.key: result.seconds, **{f"load/{key}": value for key, value in load.items()}}
        tracker.metrics(run_id, values, one.spec.optim.last_step)
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        tracker.finish(run_id, status)
        shutil.rmtree(folder, ignore_errors=True)
    return load_reasons(load), result.tokens_per_s
