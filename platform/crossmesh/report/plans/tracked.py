"""A plan as it is tracked: a point as a run with its figures, a sweep as a run with one below it for every point, and the plan's files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.plan.record import PlanRecord, plan_metrics, plan_sources
from crossmesh.track.tracker import Tracker

KIND, POINT = "plan", "plan-point"
_CHILDREN = 200
"""Points of a sweep that get a run of their own; of a larger one only those of the front."""


def log_plan(
    tracker: Tracker,
    spec: ExperimentSpec,
    records: Sequence[PlanRecord],
    shared: Mapping[str, str],
    folder: Path,
    command: str,
    status: str,
) -> str:
    """Log `records` and the files of `folder`; return the id of the run.

    Args:
        tracker: where.
        spec: that of the point, or of the last one of a sweep.
        records: the points.
        shared: keys and values that all points of a sweep have on the command line.
        folder: what `files.write_plan` made.
        command: what was typed.
        status: FINISHED, or KILLED for a plan that was interrupted.

    Raises `TrackingError` when the store refuses.
    """
    tags = {"crossmesh.command": command}
    if len(records) == 1:
        run_id = tracker.start(spec.name, KIND, params=spec, tags={**tags, **_verdict(records[0])})
        tracker.metrics(run_id, plan_metrics(records[0]), 0)
    else:
        run_id = tracker.start(spec.name, KIND, params={**shared, "points": len(records)}, tags=tags)
        tracker.metrics(run_id, {"plan/points": len(records), "plan/fitting": sum(one.fits for one in records)}, 0)
        for one in records if len(records) <= _CHILDREN else [one for one in records if one.pareto]:
            _log_point(tracker, one, run_id)
    tracker.artifact_folder(run_id, folder, "plan")
    tracker.finish(run_id, status)
    return run_id


def _log_point(tracker: Tracker, one: PlanRecord, parent: str) -> None:
    params = {"hardware": one.hardware, **one.settings, **one.swept}
    run_id = tracker.start(one.label, POINT, parent=parent, params=params, tags=_verdict(one))
    tracker.metrics(run_id, plan_metrics(one), 0)
    tracker.finish(run_id)


def _verdict(one: PlanRecord) -> dict[str, str]:
    rejected = {"crossmesh.rejected_because": one.rejected_because} if one.rejected_because else {}
    return {"crossmesh.fits": str(one.fits).lower(), "crossmesh.pareto": str(one.pareto).lower(), **plan_sources(one), **rejected}
