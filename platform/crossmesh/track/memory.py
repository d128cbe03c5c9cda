"""The tracker `none`: runs are known while the process runs and kept nowhere, for dry runs and tests.

A job that reads back what it logged works as with any other tracker; the next job finds nothing.
"""

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.track.run_log import NewRun, TrackingError
from crossmesh.track.tracked_run import TrackedRun
from crossmesh.track.tracker import RunQuery, Tracker


@dataclass
class _Run:
    """What is known of a run."""

    run: TrackedRun
    started: float
    metrics: dict[str, dict[int, float]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    """Where a file or folder that was logged lies, by its path among the artifacts; it is not copied."""

    def shown(self) -> TrackedRun:
        """The run as it stands."""
        return replace(self.run, metrics={key: values[max(values)] for key, values in self.metrics.items()})


class MemoryTracker(Tracker):
    """Runs of this process. Threads log at the same time: a trial's own, and the one that samples the host."""

    def __init__(self, tracking: TrackingSpec, storage: StorageSpec, say: Callable[[str], None] | None = None) -> None:
        super().__init__(tracking, storage, say)
        self._runs: dict[str, _Run] = {}
        self._lock = threading.Lock()

    @property
    def uri(self) -> str:
        """Names the tracker: there is no address."""
        return "none (nothing is tracked)"

    @property
    def keeps_runs(self) -> bool:
        """They end with the process."""
        return False

    def create_run(self, run: NewRun) -> str:
        """Start a run."""
        run_id = uuid.uuid4().hex
        self._runs[run_id] = _Run(TrackedRun(run_id, run.name, "RUNNING", dict(run.tags), dict(run.params)), time.time())
        return run_id

    def resume_run(self, run_id: str) -> float | None:
        """Continue a run of this process."""
        known = self._runs.get(run_id)
        if known is None:
            return None
        known.run = replace(known.run, status="RUNNING")
        return known.started

    def log_metrics(self, run_id: str, values: Mapping[str, float], step: int, milliseconds: int) -> None:  # noqa: ARG002  # Of the interface.
        """Remember `values`."""
        known = self._known(run_id)
        with self._lock:
            for key, value in values.items():
                known.metrics.setdefault(key, {}).setdefault(step, value)

    def log_tags(self, run_id: str, values: Mapping[str, str]) -> None:
        """Set tags."""
        known = self._known(run_id)
        with self._lock:
            known.run = replace(known.run, tags={**known.run.tags, **values})

    def log_text(self, run_id: str, path: str, text: str) -> None:
        """Remember `text`."""
        self._known(run_id).texts[path] = text

    def log_artifact(self, run_id: str, source: Path, folder: str) -> None:
        """Remember where `source` lies."""
        known = self._known(run_id)
        for file in sorted(source.rglob("*")) if source.is_dir() else [source]:
            if file.is_file():
                name = file.relative_to(source if source.is_dir() else source.parent).as_posix()
                known.files[str(PurePosixPath(folder) / name)] = file

    def end_run(self, run_id: str, status: str | None) -> None:
        """Set the status."""
        known = self._known(run_id)
        with self._lock:
            known.run = replace(known.run, status=status or known.run.status)

    def search(self, query: RunQuery, limit: int = 0) -> tuple[TrackedRun, ...]:
        """The runs of this process that match, newest first."""
        with self._lock:
            matches = [shown for known in reversed(list(self._runs.values())) if query.matches(shown := known.shown())]
        return tuple(matches[: limit or None])

    def run(self, run_id: str) -> TrackedRun:
        """Return a run of this process."""
        known = self._known(run_id)
        with self._lock:
            return known.shown()

    def histories(self, run_ids: Sequence[str], key: str) -> dict[str, tuple[tuple[int, float], ...]]:
        """Return the values of a metric, by run."""
        values = {run_id: self._known(run_id).metrics.get(key) for run_id in run_ids}
        with self._lock:
            return {run_id: tuple(sorted(own.items())) for run_id, own in values.items() if own}

    def download(self, run_id: str, path: str, folder: Path) -> Path:
        """Copy what was logged at `path`, or below it."""
        known, wanted, target = self._known(run_id), PurePosixPath(path), folder / PurePosixPath(path).name
        if path in known.texts:
            target.write_text(known.texts[path], encoding="utf-8")
            return target
        below = {name: file for name, file in known.files.items() if PurePosixPath(name).is_relative_to(wanted)}
        if not below:
            raise TrackingError(f"Run {run_id} has no artifact {path}. Track with another tracker (tracking.trackers) to keep artifacts.")
        for name, file in below.items():
            copy = target / PurePosixPath(name).relative_to(wanted)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy)
        return target

    def _known(self, run_id: str) -> _Run:
        if run_id not in self._runs:
            raise TrackingError(
                f"Run {run_id} does not exist: tracking.trackers=[none] knows the runs of one job only. Track with another tracker."
            )
        return self._runs[run_id]
