"""What an MLflow run of a training says of it: totals, utilization, energy, and what its plan said. The one way for all reports."""

import re
from collections.abc import Iterable, Sequence

from crossmesh.errors import InputError
from crossmesh.report.tables.cells import MODELLED
from crossmesh.report.tables.measures import PLANNED_MEMORY, PLANNED_SPEED
from crossmesh.report.variants import TrainingSummary
from crossmesh.track.repeats import STEADY_MISSING
from crossmesh.track.tracked_run import TAG_HBM_SOURCE, TAG_STEP_SOURCE, TrackedRun
from crossmesh.track.tracker import Tracker

FINAL = "train/final_loss"
_TOTALS = (FINAL, "train/tokens_per_s_steady", "train/seconds", "train/tokens", "train/loss_tokens")
"""Metrics that every finished training has."""
_POWER = re.compile(r"^system/(?:.+/)?gpu_\d+_power_usage_watts$")
_GIB = 1 << 30


def training_summary(run: TrackedRun, losses: tuple[tuple[int, float], ...], watts: float | None) -> TrainingSummary:
    """What a run measured of itself; `watts` is the mean power of all its GPUs together, where it was read.

    Raises `InputError` for a run that lacks what a finished training has.
    """
    metrics = run.metrics
    if missing := [name for name in _TOTALS if name not in metrics]:
        raise InputError(f"The MLflow run {run.run_id} ({run.name}) has no metric {missing[0]}: it is not a finished training of ours.")
    totals = {name.removeprefix("train/"): metrics[name] for name in _TOTALS}
    padded = metrics.get("train/padded_tokens_per_s_steady")
    planned, planned_mfu = metrics.get("plan/tokens_per_s"), metrics.get("plan/mfu")
    # A rate without some slices is not that of the mesh that the run names.
    rate, padded = (None, None) if metrics.get(STEADY_MISSING) else (totals["tokens_per_s_steady"], padded)
    return TrainingSummary(
        losses=losses,
        final_loss=totals["final_loss"],
        tokens_per_s=rate,
        seconds=totals["seconds"],
        tokens=int(totals["tokens"]),
        loss_tokens=int(totals["loss_tokens"]),
        padded_tokens_per_s=padded,
        rented_s=metrics.get("train/rented_seconds"),
        mfu=planned_mfu * rate / planned if planned and planned_mfu and rate else None,
        energy_wh=None if watts is None else watts * totals["seconds"] / 3600,
    )


def planned_before(run: TrackedRun) -> dict[str, tuple[float, str]]:
    """Speed and memory as the plan had them, with where it had them from."""
    kept = (
        (PLANNED_SPEED, "plan/tokens_per_s", 1.0, TAG_STEP_SOURCE),
        (PLANNED_MEMORY, "plan/hbm_bytes_per_chip", 1 / _GIB, TAG_HBM_SOURCE),
    )
    return {key: (scale * run.metrics[metric], run.tags.get(tag, MODELLED)) for key, metric, scale, tag in kept if metric in run.metrics}


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
