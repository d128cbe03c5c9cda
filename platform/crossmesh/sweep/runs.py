"""A sweep as it is tracked: one run above its trials, the state of all points in it, and a short run for each point that was rejected."""

import json
from collections.abc import Mapping
from pathlib import Path

from crossmesh.errors import InputError
from crossmesh.files import canonical_json, digest_text, write_json
from crossmesh.installation import job_command
from crossmesh.sweep.state import Point, SweepState, state_of
from crossmesh.track.run_log import TrackingError
from crossmesh.track.tracked_run import TrackedRun
from crossmesh.track.tracker import Tracker

KIND, REJECTED_KIND = "sweep", "rejected"
TAG_REASON = "crossmesh.rejected_because"
STATE_ARTIFACT = "sweep/state.json"
_RUN_FILE = "run.json"


class SweepRun:
    """The run of a sweep whose files are in `folder`: continued when it was started before."""

    def __init__(self, tracker: Tracker, folder: Path, state: SweepState, shared: Mapping[str, str]) -> None:
        self._tracker = tracker
        file = folder / _RUN_FILE
        kept = tracker.resume_kept(file)
        self.run_id = kept or tracker.start(
            state.name,
            KIND,
            identity=state.identity,
            tags={"crossmesh.command": state.command},
            params={**shared, "points": len(state.points)},
        )
        if kept is None:
            write_json(file, {"run_id": self.run_id})

    def keep(self, state: SweepState) -> None:
        """Track the state, for those who cannot reach the storage."""
        self._tracker.artifact_text(self.run_id, STATE_ARTIFACT, json.dumps(state.json(), indent=1) + "\n")

    def rejected(self, sweep: str, point: Point) -> str:
        """Put a rejected point under the sweep, once however often it is rejected, and return its run; `sweep` is the sweep's identity."""
        identity = digest_text(canonical_json([REJECTED_KIND, sweep, point.key, point.reason]))
        if found := self._tracker.find(identity, "KILLED"):
            return found.run_id
        tags = {TAG_REASON: point.reason}
        params = dict(part.partition("=")[::2] for part in point.label.split(" ")) if "=" in point.label else {}
        run_id = self._tracker.start(
            point.label or point.key, REJECTED_KIND, parent=self.run_id, identity=identity, tags=tags, params=params
        )
        self._tracker.finish(run_id, "KILLED")
        return run_id

    def finish(self, state: SweepState, status: str) -> None:
        """End it with what it came to."""
        self.keep(state)
        counts, spent = state.counts(), state.spent
        self._tracker.metrics(
            self.run_id,
            {"sweep/usd": spent.usd, "sweep/hours": spent.hours, **{f"sweep/{name}": count for name, count in counts.items()}},
            state.starts,
        )
        self._tracker.finish(self.run_id, status)


def tracked_state(tracker: Tracker, prefix: str) -> tuple[TrackedRun, SweepState]:
    """The sweep whose run id begins with `prefix`, as it is tracked; with an empty one the newest sweep.

    Raises `InputError` when there is none, or several.
    """
    tracker.require_kept("sweep", prefix)
    sweeps = tracker.matching(prefix, KIND)
    if not sweeps and not prefix:
        raise InputError(
            f"No sweep has been started at {tracker.uri}. Start one: {job_command('finetune')} -m experiment=demo batch.micro=1,2"
        )
    if not sweeps:
        raise InputError(f"sweep={prefix!r}: {tracker.uri} has no sweep whose run begins so. Look for it with: {tracker.ui_command}")
    if prefix and len(sweeps) > 1:
        names = ", ".join(run.run_id for run in sweeps[:8])
        raise InputError(f"sweep={prefix!r} begins the ids of {len(sweeps)} sweeps: {names}. Give more letters.")
    run = sweeps[0]
    try:
        return run, state_of(tracker.read_json(run.run_id, STATE_ARTIFACT))
    except (TrackingError, TypeError, KeyError, ValueError) as error:
        raise InputError(f"The sweep {run.run_id} has not told {tracker.title} yet where it stands. Ask again in a minute.") from error


def as_result(state: SweepState, exit_code: int) -> dict[str, object]:
    """What a script wants to know of a sweep."""
    spent = state.spent
    points = [
        {"point": point.label, "state": point.state, "run_id": point.run_id, "reason": point.reason}
        | {"usd": point.usd, "emulated": point.emulated}
        | {"seconds": point.seconds, "step": point.step, "steps": point.steps, "loss": point.loss, "tokens_per_s": point.tokens_per_s}
        for point in state.points
    ]
    counts = state.counts()
    return {
        "name": state.name,
        "sweep": state.run_id,
        "points": points,
        **{name: counts.get(name, 0) for name in ("done", "skipped", "early", "rejected", "failed", "stopped", "waiting", "running")},
        "usd": spent.usd,
        "hours": spent.hours,
        "over": state.over,
        "exit_code": exit_code,
    }
