"""What the run of a training says of it: totals, utilization, energy, and what its plan said. The one way for all reports."""

import re
from collections.abc import Iterable, Sequence

from crossmesh.errors import InputError
from crossmesh.metrics import (
    FINAL_LOSS,
    LOSS_TOKENS,
    MISSING_SLICES,
    PADDED_TOKENS_PER_S,
    PLANNED_HBM,
    PLANNED_MFU,
    PLANNED_TOKENS_PER_S,
    RENTED,
    TOKENS,
    TOKENS_PER_S,
    WALL_CLOCK,
    added_metrics,
)
from crossmesh.report.variants import TrainingSummary
from crossmesh.track.tracked_run import TAG_HBM_SOURCE, TAG_STEP_SOURCE, TrackedRun
from crossmesh.track.tracker import Tracker

_TOTALS = tuple(one.key for one in (FINAL_LOSS, TOKENS_PER_S, WALL_CLOCK, TOKENS, LOSS_TOKENS))
"""Metrics that every finished training has."""
_POWER = re.compile(r"^system/(?:.+/)?gpu_\d+_power_usage_watts$")


def training_summary(run: TrackedRun, losses: tuple[tuple[int, float], ...], watts: float | None) -> TrainingSummary:
    """What a run measured of itself; `watts` is the mean power of all its GPUs together, where it was read.

    Raises `InputError` for a run that lacks what a finished training has.
    """
    metrics = run.metrics
    if missing := [name for name in _TOTALS if name not in metrics]:
        raise InputError(f"The MLflow run {run.run_id} ({run.name}) has no metric {missing[0]}: it is not a finished training of ours.")
    loss, steady, seconds, tokens, loss_tokens = (metrics[name] for name in _TOTALS)
    padded = metrics.get(PADDED_TOKENS_PER_S.key)
    planned, planned_mfu = metrics.get(PLANNED_TOKENS_PER_S.key), metrics.get(PLANNED_MFU.key)
    # A rate without some slices is not that of the mesh that the run names.
    rate, padded = (None, None) if metrics.get(MISSING_SLICES.key) else (steady, padded)
    return TrainingSummary(
        losses=losses,
        final_loss=loss,
        tokens_per_s=rate,
        seconds=seconds,
        tokens=int(tokens),
        loss_tokens=int(loss_tokens),
        padded_tokens_per_s=padded,
        rented_s=metrics.get(RENTED.key),
        mfu=planned_mfu * rate / planned if planned and planned_mfu and rate else None,
        energy_wh=None if watts is None else watts * seconds / 3600,
        added={one.name: metrics[one.key] for one in added_metrics() if one.key in metrics},
    )


def planned_before(run: TrackedRun) -> dict[str, tuple[float, str]]:
    """Speed and memory as the plan had them, with where it had them from."""
    kept = ((PLANNED_TOKENS_PER_S, TAG_STEP_SOURCE), (PLANNED_HBM, TAG_HBM_SOURCE))
    return {one.name: (one.scale * run.metrics[one.key], run.tags.get(tag, one.source)) for one, tag in kept if one.key in run.metrics}


def mean_power(tracker: Tracker, runs: Sequence[TrackedRun]) -> dict[str, float]:
    """Mean power of all GPUs of a run together, by run, of those that have it."""
    found: dict[str, float] = {}
    for key, ids in _metered(runs).items():
        for run_id, watts in tracker.means(ids, key).items():
            found[run_id] = found.get(run_id, 0.0) + watts
    return found


def _metered(runs: Iterable[TrackedRun]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for run in runs:
        for key in filter(_POWER.match, run.metrics):
            found.setdefault(key, []).append(run.run_id)
    return found
