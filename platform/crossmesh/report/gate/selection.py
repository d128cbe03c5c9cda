"""Which tracked runs a comparison is about: those named, those of a sweep, or those of an experiment. Reads; judges nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from crossmesh.errors import InputError
from crossmesh.track.tracked_run import TAG_KIND, TAG_PARENT, TrackedRun
from crossmesh.track.tracker import Tracker

TRAIN, EVALUATE, BENCHMARK = "train", "evaluate", "benchmark"
KINDS = (TRAIN, EVALUATE, BENCHMARK)
_REJECTED = "crossmesh.rejected_because"
_FULL_ID = 32
_NAMED = 8
_NEWEST = 4


@dataclass(frozen=True)
class Selection:
    """Runs to be compared."""

    title: str
    runs: tuple[TrackedRun, ...]
    """FINISHED ones."""
    as_given: bool
    """Whether they are shown in this order; else by what tells them apart."""
    notes: tuple[str, ...] = ()
    """What was left out, and why."""


def run_kind(run: TrackedRun) -> str:
    """What a run is; empty for one that is not ours."""
    return run.tags.get(TAG_KIND, "")


def parent_of(run: TrackedRun) -> str:
    """The id of the run that it stands under; empty without one."""
    return run.tags.get(TAG_PARENT, "")


def trainings_of(selection: Selection) -> list[TrackedRun]:
    """Return the trainings of a selection."""
    return [run for run in selection.runs if run_kind(run) == TRAIN]


def named_runs(tracker: Tracker, prefixes: Sequence[str]) -> Selection:
    """The finished runs whose ids begin so. Raises `InputError` when none or several do, or when one is not a result."""
    found = [find_run(tracker, "runs", prefix) for prefix in prefixes]
    twice = [run.run_id for run in found if found.count(run) > 1]
    if twice:
        raise InputError(f"runs={list(prefixes)} names {twice[0]} more than once. Name different runs.")
    return Selection("runs", tuple(found), as_given=True)


def find_run(tracker: Tracker, key: str, prefix: str) -> TrackedRun:
    """The one run whose id begins with `prefix`, which `key` gave and which must be a finished training, evaluation or benchmark."""
    run = _only(tracker, key, prefix)
    if run.status != "FINISHED" or run_kind(run) not in KINDS:
        raise InputError(
            f"{key}={prefix!r} is the {tracker.title} run {run.run_id} ({run.name}, {run_kind(run) or 'not ours'}, {run.status}), no "
            "finished training, evaluation or benchmark. Allowed: runs of finetune, evaluate or benchmark that ended well; their "
            "`run_id` is in the job's result. For all runs of a sweep: sweep=ID."
        )
    return run


def sweep_runs(tracker: Tracker, prefix: str) -> Selection:
    """The finished trials of the sweep (or pipeline) whose id begins with `prefix`; the others are noted."""
    parent = _only(tracker, "sweep", prefix)
    children = tracker.children(parent.run_id)
    runs = _ordered([run for run in children if run_kind(run) in KINDS and run.status == "FINISHED"])
    if not runs:
        raise InputError(
            f"sweep={prefix!r} is the {tracker.title} run {parent.run_id} ({parent.name}), and no finished training, evaluation or "
            f"benchmark is below it ({len(children)} runs are). Give the run of a sweep; single runs go into runs=[a,b]."
        )
    return Selection(f"sweep {parent.name} {parent.run_id[:_NAMED]}", runs, as_given=False, notes=_left_out(children))


def experiment_runs(tracker: Tracker, name: str) -> Selection:
    """All finished trainings of the experiment `name`, and what measured them."""
    tracker.require_kept("experiment", name)
    runs = _ordered([run for kind in KINDS for run in tracker.recent(kind) if run.params.get("name") == name])
    if not runs:
        raise InputError(
            f"No finished run at {tracker.uri} is of the experiment {name!r}. Give runs=[a,b], sweep=ID, or experiment=FILE of an "
            "experiment that was run."
        )
    return Selection(name, runs, as_given=False)


def newest_runs(tracker: Tracker) -> str:
    """Name the newest finished runs of each kind, for who has to choose some; empty where there is none."""
    runs = [run for kind in KINDS for run in tracker.recent(kind)[:_NEWEST]]
    named = ", ".join(f"{run.run_id[:_NAMED]} ({run_kind(run)}, {run.name})" for run in runs)
    return f" The newest finished runs: {named}." if named else f" There is no finished run at {tracker.uri} yet."


def _ordered(runs: Sequence[TrackedRun]) -> tuple[TrackedRun, ...]:
    """In an order that does not depend on when they ran."""
    return tuple(sorted(runs, key=lambda run: (KINDS.index(run_kind(run)), run.name, run.run_id)))


def _left_out(children: Sequence[TrackedRun]) -> tuple[str, ...]:
    """One line a child that has no result, with the reason where the run says one."""
    rest = sorted((run for run in children if run.status != "FINISHED" or run.tags.get(_REJECTED)), key=lambda run: run.run_id)
    said = [f"Left out: {run.name} {run.run_id[:_NAMED]} ({run.tags.get(_REJECTED, run.status)})." for run in rest[:_NAMED]]
    return (*said, f"Left out as well: {len(rest) - _NAMED} more.") if len(rest) > _NAMED else tuple(said)


def _only(tracker: Tracker, key: str, prefix: str) -> TrackedRun:
    tracker.require_kept(key, prefix)
    if len(prefix) == _FULL_ID and prefix.isalnum() and tracker.has_run(prefix):  # Of any experiment.
        return tracker.run(prefix)
    found = tracker.matching(prefix)
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(run.run_id for run in found[:_NAMED])
        raise InputError(f"{key}={prefix!r} begins the ids of {len(found)} runs: {names}. Give more letters.")
    raise InputError(
        f"{key}={prefix!r}: no run of {tracker.uri} begins so. Look for it with: {tracker.ui_command} "
        "(A beginning such as 12e4 is read as a number: give the whole id.)"
    )
