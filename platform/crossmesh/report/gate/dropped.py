"""What a reader must know of the rows of trainings: how many were dropped, and why. Reads records; judges nothing."""

from collections.abc import Sequence

from crossmesh.errors import CrossmeshError
from crossmesh.track.tracked_run import TAG_DATA, TrackedRun
from crossmesh.track.tracker import Tracker

_METRIC = "data/dropped_rows"
_RECORD = "records/rows.json"
_NAMED = 8
"""So many different records are named."""


def dropped_notes(tracker: Tracker, runs: Sequence[TrackedRun]) -> tuple[str, ...]:
    """A line for each way in which rows were dropped, with the trainings that it holds for."""
    found: dict[str, list[str]] = {}
    words: dict[tuple[str, float], str] = {}  # By the rows that were kept: trials of a sweep share them.
    for run in runs:
        if count := run.metrics.get(_METRIC, 0.0):
            rows = (run.tags.get(TAG_DATA) or run.run_id, count)
            if rows not in words:
                words[rows] = _words(tracker, run)
            found.setdefault(words[rows], []).append(f"{run.name} {run.run_id[:8]}")
    lines = [f"Rows dropped before training, {_some(names)}: {words}." for words, names in found.items()]
    more = len(lines) - _NAMED
    return tuple(lines if more <= 0 else [*lines[:_NAMED], f"Rows were dropped in {more} more ways: {_RECORD} of each run."])


def _words(tracker: Tracker, run: TrackedRun) -> str:
    """Why, by reason; the number alone where the record is away."""
    try:
        dropped = tracker.read_json(run.run_id, _RECORD)["dropped"]
        return "; ".join(f"{one['count']:,} x {one['reason']} ({', '.join(one['places'])})" for one in dropped)
    except (CrossmeshError, OSError, ValueError, KeyError, TypeError):
        return f"{run.metrics[_METRIC]:,.0f} rows"


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
