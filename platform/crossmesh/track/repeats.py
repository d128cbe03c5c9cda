"""Repeats of trainings as they are tracked: found by what they repeat, with what their load checks say."""

from collections.abc import Mapping, Sequence

from crossmesh.metrics import MISSING_SLICES, TOKENS_PER_S
from crossmesh.track.load import load_reasons
from crossmesh.track.tracked_run import TrackedRun
from crossmesh.track.tracker import Tracker

KIND = "repeat"
TAG_OF, TAG_ROUND, TAG_STEPS = "crossmesh.repeat_of", "crossmesh.repeat_round", "crossmesh.repeat_steps"
RATE, STEADY_MISSING = TOKENS_PER_S.key, MISSING_SLICES.key
"""How many slices of its mesh the steps of `RATE` lacked; not there for a mesh of repeat."""


def repeats_by_run(tracker: Tracker) -> dict[str, list[TrackedRun]]:
    """All finished repeats of the store by the training that they repeat."""
    repeats: dict[str, list[TrackedRun]] = {}
    for run in tracker.recent(KIND):
        if RATE in run.metrics and TAG_ROUND in run.tags:
            repeats.setdefault(run.tags.get(TAG_OF, ""), []).append(run)
    return repeats


def tracked_load_reasons(metrics: Mapping[str, float]) -> tuple[str, ...]:
    """What a run's own load check says."""
    return load_reasons({key.removeprefix("load/"): value for key, value in metrics.items() if key.startswith("load/")})


def sound_rounds(runs: Sequence[str], repeats: Mapping[str, Sequence[TrackedRun]], steps: int) -> int:
    """Rounds that all of `runs` have a repeat of `steps` steps in, without load."""
    rounds = [
        {
            repeat.tags[TAG_ROUND]
            for repeat in repeats.get(run, ())
            if repeat.tags.get(TAG_STEPS) == str(steps) and not tracked_load_reasons(repeat.metrics)
        }
        for run in runs
    ]
    return len(set.intersection(*rounds)) if rounds else 0


def sound_rates(runs: Sequence[TrackedRun]) -> dict[tuple[str, str], float]:
    """The rates of one training's repeats that did not run under load, by round and number of steps."""
    return {
        (repeat.tags[TAG_ROUND], repeat.tags.get(TAG_STEPS, "")): repeat.metrics[RATE]
        for repeat in runs
        if not tracked_load_reasons(repeat.metrics)
    }
