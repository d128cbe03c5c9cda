"""Runs as the rest of crossmesh knows them: start, resume, log, finish and find them, each call naming its run.

A `Tracker` is a `RunLog` that can be read as well. What is here is the same for all: which tags say what, what is masked, which records a
run has. Where and how runs are kept is known to the implementations (`trackers.py`).
"""

import json
import math
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.console import Console
from crossmesh.errors import InputError
from crossmesh.files import canonical_json, digest_text, read_json
from crossmesh.track.flatten import flatten
from crossmesh.track.masking import mask_secrets
from crossmesh.track.provenance import Provenance, environment_text
from crossmesh.track.run_log import STATUSES, ModelVersion, NewRun, RunLog, TrackingError, UsedDataset
from crossmesh.track.system import sampling
from crossmesh.track.tracked_run import (
    TAG_COMMIT,
    TAG_EMULATED,
    TAG_IDENTITY,
    TAG_KIND,
    TAG_PARENT,
    TAG_PROVENANCE,
    TAG_SCIENCE,
    TAG_SYSTEM,
    TrackedRun,
)

VERSIONS = "version."
"""How tags begin that are not read: a run has a score of them, its provenance record has the same, and nothing asks."""
_TAG_UNDER = "crossmesh.under."
"""With the id of a run behind it: this run belongs under that one too."""


@dataclass(frozen=True)
class RunQuery:
    """Which runs of an experiment are looked for; what is empty is not asked."""

    tags: Mapping[str, str] = field(default_factory=dict)
    status: str = ""
    without: Mapping[str, str] = field(default_factory=dict)
    """Parameters that a run has, with another value."""
    prefix: str = ""
    """How its id begins."""

    def matches(self, run: TrackedRun) -> bool:
        """Whether a run is looked for."""
        return (
            all(run.tags.get(key) == value for key, value in self.tags.items())
            and all(run.params.get(key, value) != value for key, value in self.without.items())
            and self.status in ("", run.status)
            and run.run_id.startswith(self.prefix)
        )


@dataclass(frozen=True)
class RunSettings:
    """What a run is given, and whether its devices are emulated."""

    values: Any = None
    """A dataclass or mapping, flattened to dotted keys."""
    emulated: bool = False
    """Whether it computes on CPU devices under the name of other hardware; a tag and a parameter say so."""

    @property
    def params(self) -> dict[str, str]:
        """Parameters by dotted key, secrets masked."""
        flat = flatten(self.values) if self.values is not None else {}
        return {**flat, "emulated": "true"} if self.emulated else flat


class Tracker(RunLog):
    """Runs of one driver process: `tracking` says where and under which experiment, `storage` where files are.

    A run that it started or resumed is open until it is finished. `say` shows a person a line; it is called from any thread.
    """

    def __init__(self, tracking: TrackingSpec, storage: StorageSpec, say: Callable[[str], None] | None = None) -> None:  # noqa: ARG002  # Of implementations.
        self._tracking = tracking
        self._say = say or Console().say
        self._started: dict[str, float] = {}
        """When each open run was started, in seconds since 1970."""

    @property
    @abstractmethod
    def uri(self) -> str:
        """Where runs are kept, as it may be printed."""

    @abstractmethod
    def search(self, query: RunQuery, limit: int = 0) -> tuple[TrackedRun, ...]:
        """Return the runs of this experiment that `query` looks for, newest first; with `limit` no more than so many."""

    @abstractmethod
    def run(self, run_id: str) -> TrackedRun:
        """Return a run as it stands now. Raises `TrackingError` when it does not exist."""

    @abstractmethod
    def histories(self, run_ids: Sequence[str], key: str) -> dict[str, tuple[tuple[int, float], ...]]:
        """Return a metric's values as (step, value), by step, of each run that has it."""

    @abstractmethod
    def download(self, run_id: str, path: str, folder: Path) -> Path:
        """Copy the artifact file or folder at `path` of a run into the existing `folder` and return where it is."""

    @property
    def title(self) -> str:
        """What people call the store, e.g. `MLflow`."""
        return self.uri

    @property
    def ui_command(self) -> str:
        """What to type, or where to look, to see the runs."""
        return self.uri

    @property
    def keeps_runs(self) -> bool:
        """Whether a later job finds the runs of this one."""
        return True

    def require_kept(self, key: str, value: object) -> None:
        """Raise `InputError` where `key`, given as `value`, names a run of an earlier job and no run outlives its job."""
        if not self.keeps_runs:
            raise InputError(
                f"{key}={value}: tracking.trackers={list(self._tracking.trackers)} keeps no run after its job, so there is none to read. "
                "Name the tracker that has it, e.g. tracking.trackers=[mlflow]."
            )

    @property
    def opens_slowly(self) -> bool:
        """Whether the first record waits seconds for the store, which `open_store` can do before."""
        return False

    def open_store(self) -> None:
        """Do now what the first record would wait for."""

    def has_run(self, run_id: str) -> bool:
        """Whether there is a run of this whole id."""
        try:
            return self.run(run_id).run_id == run_id
        except TrackingError:
            return False

    def start(
        self,
        name: str,
        kind: str,
        *,
        parent: str | None = None,
        identity: str | None = None,
        tags: Mapping[str, str] | None = None,
        params: Any = None,
    ) -> str:
        """Start a run and return its id.

        Args:
            name: Shown to people, e.g. `torch`.
            kind: What it is: `experiment`, `train`, `evaluate`, ...
            parent: Run id of the run it belongs under.
            identity: What `find` looks for; equal identities mean equal results.
            tags: More tags.
            params: `RunSettings`, or a dataclass or mapping where nothing is emulated.
        """
        settings = params if isinstance(params, RunSettings) else RunSettings(params)
        own = {TAG_KIND: kind, TAG_PARENT: parent, TAG_IDENTITY: identity, TAG_EMULATED: "true" if settings.emulated else None}
        known = {key: mask_secrets(value) for key, value in {**(tags or {}), **own}.items() if value is not None}
        run_id = self.create_run(NewRun(name, known, settings.params))
        self._started[run_id] = time.time()
        return run_id

    def resume(self, run_id: str) -> TrackedRun | None:
        """Set a run to RUNNING again and return it; None when it does not exist (any more)."""
        started = self.resume_run(run_id)
        if started is None:
            return None
        self._started[run_id] = started
        return self.run(run_id)

    def resume_kept(self, file: Path) -> str | None:
        """Resume the run whose id `file` keeps and return the id; None when file or run does not exist (any more)."""
        try:
            run_id = str(read_json(file)["run_id"])
        except (OSError, ValueError, KeyError, TypeError):  # Absent, or damaged: either way it names no run.
            return None
        return run_id if self.resume(run_id) else None

    def metrics(self, run_id: str, values: Mapping[str, float], step: int, milliseconds: int = 0) -> None:
        """Log `values` at `step`, by default as of now; a pair (metric, step) that the run already has stays as it is."""
        numbers: dict[str, float] = {}
        for name, value in values.items():
            try:
                numbers[name] = float(value)
            except (TypeError, ValueError, OverflowError):
                self._say(f"The metric {name!r} is not a number ({str(value)[:40]!r}): it is left out")
        self.log_metrics(run_id, numbers, step, milliseconds or int(time.time() * 1000))

    def system(self, run_id: str, node: str, values: Mapping[str, float], at: float) -> None:
        """Log what a node was busy with at `at`, in seconds since 1970; the step is the seconds since the run was started."""
        if (started := self._started.get(run_id)) is None:  # It ended meanwhile.
            return
        named = {f"system/{node}/{key}" if node else f"system/{key}": value for key, value in values.items()}
        self.metrics(run_id, named, max(0, round(at - started)), round(at * 1000))

    def tags(self, run_id: str, values: Mapping[str, str]) -> None:
        """Set tags."""
        self.log_tags(run_id, {key: mask_secrets(value) for key, value in values.items()})

    def dataset(self, run_id: str, name: str, digest: str, source: str, context: str, profile: Mapping[str, Any] | None = None) -> None:
        """Say which data a run used.

        Args:
            run_id: the run.
            name: shown to people.
            digest: of what was used.
            source: where the data are, masked before it is stored.
            context: what for: `training`, `evaluation`, ...
            profile: counts to show, e.g. rows and tokens.
        """
        self.log_dataset(run_id, UsedDataset(name, digest, mask_secrets(source), context, profile or {}))

    def records(self, run_id: str, science: Mapping[str, Any], system: Mapping[str, Any]) -> None:
        """Store the science and system records in full under `records/`, and their fingerprints as tags."""
        self.artifact_json(run_id, "records/science.json", science)
        self.artifact_json(run_id, "records/system.json", system)
        self.tags(run_id, {TAG_SCIENCE: digest_text(canonical_json(science)), TAG_SYSTEM: digest_text(canonical_json(system))})

    def provenance(self, run_id: str, provenance: Provenance) -> None:
        """Store versions, host and git state under `records/`, the diff as `records/git.diff`, fingerprint and commit as tags."""
        record = provenance.record()
        self.artifact_json(run_id, "records/provenance.json", record)
        self.artifact_text(run_id, "records/environment.txt", environment_text())
        tags = {f"{VERSIONS}{name}": version for name, version in provenance.libraries.items()}
        tags[TAG_PROVENANCE] = digest_text(canonical_json(record))
        if provenance.git is not None:
            tags[TAG_COMMIT] = provenance.git.sha
            tags["crossmesh.git_dirty"] = str(provenance.git.dirty).lower()
            if provenance.git.diff:
                self.artifact_text(run_id, "records/git.diff", provenance.git.diff)
        self.tags(run_id, tags)

    def artifact_json(self, run_id: str, path: str, value: Any) -> None:
        """Store `value` as indented JSON at `path` inside the run's artifacts."""
        self.artifact_text(run_id, path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")

    def artifact_text(self, run_id: str, path: str, text: str) -> None:
        """Store `text` at `path` inside the run's artifacts, secrets masked."""
        self.log_text(run_id, path, mask_secrets(text))

    def artifact_file(self, run_id: str, file: Path, folder: str = "") -> None:
        """Store a local file under `folder` inside the run's artifacts, as it is now."""
        self.log_artifact(run_id, file, folder)

    def artifact_folder(self, run_id: str, source: Path, folder: str) -> None:
        """Store all files of a local folder under `folder` inside the run's artifacts, as they are now."""
        self.log_artifact(run_id, source, folder)

    def register(self, run_id: str, artifact: str, name: str, tags: Mapping[str, str], alias: str = "") -> None:
        """Make the artifact folder of a run a version of the registered model `name`, which then has `alias`, and tag the run with it.

        A version that the run already has there is taken again, with the new tags.
        """
        self.register_model(run_id, ModelVersion(artifact, name, dict(tags), alias))

    def finish(self, run_id: str, status: str = "FINISHED") -> None:
        """End a run as FINISHED, FAILED or KILLED."""
        if status not in STATUSES:
            raise ValueError(f"status {status!r} is not one of {', '.join(STATUSES)}")
        self._started.pop(run_id, None)
        self.end_run(run_id, status)

    def leave(self, run_id: str) -> None:
        """Let go of a run as it is: another job has it now."""
        self._started.pop(run_id, None)
        self.end_run(run_id, None)

    def find(self, identity: str, status: str = "FINISHED") -> TrackedRun | None:
        """Return the newest run of this experiment with `identity` and `status`, or None."""
        matches = self.search(RunQuery({TAG_IDENTITY: identity}, status), limit=1)
        return matches[0] if matches else None

    def recent(self, kind: str, without: Mapping[str, str] | None = None) -> tuple[TrackedRun, ...]:
        """Return all FINISHED runs of `kind`, newest first; with `without` those that have these parameters with other values."""
        return self.search(RunQuery({TAG_KIND: kind}, "FINISHED", without or {}))

    def children(self, parent: str) -> tuple[TrackedRun, ...]:
        """Return the runs under `parent`, newest first: those that were made for it, then those that were there before."""
        return self.search(RunQuery({TAG_PARENT: parent})) + self.search(RunQuery({f"{_TAG_UNDER}{parent}": "true"}))

    def adopt(self, run_id: str, parent: str) -> None:
        """Put a run that may have been made by itself, or for another one, under `parent` too."""
        above = self.run(run_id).tags.get(TAG_PARENT)
        if above != parent:
            self.tags(run_id, {f"{_TAG_UNDER}{parent}": "true"} if above else {TAG_PARENT: parent})

    def matching(self, prefix: str, kind: str = "") -> tuple[TrackedRun, ...]:
        """Return the runs of this experiment whose id begins with `prefix`, newest first; with `kind` those of that kind."""
        if not prefix.isalnum() and prefix:  # No id has other signs, which a store may take for more than themselves.
            return ()
        return self.search(RunQuery({TAG_KIND: kind} if kind else {}, prefix=prefix))

    def history(self, run_id: str, key: str) -> tuple[tuple[int, float], ...]:
        """Return a metric's values as (step, value), by step."""
        return self.histories([run_id], key).get(run_id, ())

    def means(self, run_ids: Sequence[str], key: str) -> dict[str, float]:
        """Return the mean of all values of a metric, those that are no number left out, of each run that has it."""
        return {run_id: _mean([value for _, value in values]) for run_id, values in self.histories(run_ids, key).items()}

    def read_json(self, run_id: str, path: str) -> Any:
        """Return the JSON artifact at `path` of a run."""
        with tempfile.TemporaryDirectory() as folder:
            return json.loads(self.download(run_id, path, Path(folder)).read_text(encoding="utf-8"))

    @contextmanager
    def system_metrics(self, run_id: str) -> Iterator[None]:
        """While the block runs, log what this host is busy with (`system.py`); does nothing with `tracking.system_metrics=false`."""
        if not self._tracking.system_metrics:
            yield
            return
        with sampling(lambda values: self.system(run_id, "", values, time.time())):
            yield


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan
