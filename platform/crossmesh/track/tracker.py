"""Runs in MLflow: start, resume, log, finish and find them, each call naming its run.

One `Tracker` serves one driver process. It keeps no active run; what it remembers is only which (metric, step) pairs a run already
has, so that a resumed run logs each once. It does not buffer: what a call returns from is stored.
"""

import json
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossmesh.errors import InputError
from crossmesh.files import canonical_json, digest_text, read_json
from crossmesh.spec.services import StorageSpec, TrackingSpec
from crossmesh.track.client import TrackingError, open_client, store_lock, tracking_place, translated
from crossmesh.track.flatten import METRICS_PER_BATCH, PARAM_LIMIT, PARAMS_PER_BATCH, TAG_LIMIT, flatten, split_long
from crossmesh.track.masking import mask
from crossmesh.track.provenance import Provenance, environment_text

TAG_KIND = "crossmesh.kind"
TAG_IDENTITY = "crossmesh.identity"
TAG_SCIENCE = "crossmesh.science"
TAG_SYSTEM = "crossmesh.system"
UI_PORT = 5000
STATUSES = ("FINISHED", "FAILED", "KILLED")
_TAG_PARENT = "mlflow.parentRunId"
_TAG_COMMIT = "mlflow.source.git.commit"
_SYSTEM_METRICS_EVERY_S = 5.0
_RUNS_LOOKED_THROUGH = 10_000
"""MLflow cannot search for the beginning of a run's id."""


@dataclass(frozen=True)
class TrackedRun:
    """A run as it stands in the store."""

    run_id: str
    name: str
    status: str
    """RUNNING, FINISHED, FAILED or KILLED."""
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The value at the last step of each metric."""


class Tracker:
    """MLflow for one driver: `tracking` says where and under which experiment, `storage` where the default place is.

    Raises:
        InputError: `tracking.uri` is relative, or of a kind that MLflow does not know.
        TrackingError: the store cannot be opened or reached.
    """

    def __init__(self, tracking: TrackingSpec, storage: StorageSpec) -> None:
        self._tracking = tracking
        self._place = tracking_place(tracking, storage)
        self._client = open_client(self._place)
        self._experiment_id: str | None = None
        self._logged: dict[str, set[tuple[str, int]]] = {}
        self.experiment()  # Says now that a server is away, not after the download of a model.

    @property
    def uri(self) -> str:
        """The tracking URI, as it may be printed."""
        return self._place.shown

    @property
    def ui_command(self) -> str:
        """What to type, or where to look, to see the runs."""
        return self.uri if self._place.artifacts is None else shlex.join(self.ui_arguments(UI_PORT))

    def ui_arguments(self, port: int) -> list[str]:
        """Return the program and arguments of an MLflow UI on 127.0.0.1. Raises `InputError` when the store is a server with its own."""
        if self._place.artifacts is None:
            raise InputError(f"tracking.uri={self.uri!r} is a server with a UI of its own: open it in a browser.")
        where = ["--host", "127.0.0.1", "--port", str(port), "--backend-store-uri", self.uri]
        return [sys.executable, "-m", "mlflow", "ui", *where]

    def experiment(self) -> str:
        """Return the id of the experiment `tracking.experiment`, made on first use."""
        if self._experiment_id is None:
            with translated(self._place, f"open experiment {self._tracking.experiment!r}"):
                self._experiment_id = self._find_or_create_experiment(self._tracking.experiment)
        return self._experiment_id

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
            name: Shown in the UI, e.g. `torch`.
            kind: What it is: `experiment`, `train`, `evaluate`, ...
            parent: Run id of the run it belongs under.
            identity: What `find` looks for; equal identities mean equal results.
            tags: More tags; a value over 8,000 characters becomes an artifact under `tags/`.
            params: A dataclass or mapping, flattened to dotted keys; a value over 6,000 characters becomes an artifact under `params/`.
        """
        own = {TAG_KIND: kind, _TAG_PARENT: parent, TAG_IDENTITY: identity}
        wanted = {key: mask(value) for key, value in {**(tags or {}), **own}.items() if value is not None}
        short_tags, files = split_long(wanted, TAG_LIMIT, "tags")
        short_params, more_files = split_long(flatten(params) if params is not None else {}, PARAM_LIMIT, "params")
        experiment = self.experiment()
        with translated(self._place, f"start run {name!r}"):
            run_id = str(self._client.create_run(experiment, tags=short_tags, run_name=name).info.run_id)
        self._logged[run_id] = set()
        self._log_params(run_id, short_params)
        for path, text in {**files, **more_files}.items():
            self.artifact_text(run_id, path, text)
        return run_id

    def resume(self, run_id: str) -> TrackedRun | None:
        """Set a run to RUNNING again and remember which (metric, step) pairs it has; None when the store has no such run (any more)."""
        with translated(self._place, f"resume run {run_id}"):
            if not self._exists(run_id):
                return None
            self._client.update_run(run_id, status="RUNNING")
        self._logged.pop(run_id, None)
        self._steps_of(run_id)
        return self.run(run_id)

    def resume_kept(self, file: Path) -> str | None:
        """Resume the run whose id `file` keeps and return the id; None when there is no such file, or no such run (any more)."""
        try:
            run_id = str(read_json(file)["run_id"])
        except (OSError, ValueError, KeyError, TypeError):  # Absent, or damaged: either way it names no run.
            return None
        return run_id if self.resume(run_id) else None

    def metrics(self, run_id: str, values: Mapping[str, float], step: int) -> int:
        """Log `values` at `step` in one request; pairs that the run already has are dropped. Returns how many were new."""
        seen = self._steps_of(run_id)
        new = {key: float(value) for key, value in values.items() if (key, step) not in seen}
        if not new:
            return 0
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        entries = [Metric(key, value, now, step) for key, value in new.items()]
        with translated(self._place, f"log metrics of run {run_id}"):
            for start in range(0, len(entries), METRICS_PER_BATCH):
                self._client.log_batch(run_id, metrics=entries[start : start + METRICS_PER_BATCH])
        seen.update((key, step) for key in new)
        return len(new)

    def tags(self, run_id: str, values: Mapping[str, str]) -> None:
        """Set tags; a value over 8,000 characters becomes an artifact under `tags/`."""
        from mlflow.entities import RunTag

        short, files = split_long({key: mask(value) for key, value in values.items()}, TAG_LIMIT, "tags")
        with translated(self._place, f"tag run {run_id}"):
            self._client.log_batch(run_id, tags=[RunTag(key, value) for key, value in short.items()])
        for path, text in files.items():
            self.artifact_text(run_id, path, text)

    def records(self, run_id: str, science: Mapping[str, Any], system: Mapping[str, Any]) -> None:
        """Store the science and system records in full under `records/`, and their fingerprints as tags."""
        self.artifact_json(run_id, "records/science.json", science)
        self.artifact_json(run_id, "records/system.json", system)
        self.tags(run_id, {TAG_SCIENCE: digest_text(canonical_json(science)), TAG_SYSTEM: digest_text(canonical_json(system))})

    def provenance(self, run_id: str, provenance: Provenance) -> None:
        """Store versions, host and git state under `records/`, the diff as `records/git.diff`, and the commit as a tag."""
        self.artifact_json(run_id, "records/provenance.json", provenance.record())
        self.artifact_text(run_id, "records/environment.txt", environment_text())
        tags = {f"version.{name}": version for name, version in provenance.libraries.items()}
        if provenance.git is not None:
            tags[_TAG_COMMIT] = provenance.git.sha
            tags["crossmesh.git_dirty"] = str(provenance.git.dirty).lower()
            if provenance.git.diff:
                self.artifact_text(run_id, "records/git.diff", provenance.git.diff)
        self.tags(run_id, tags)

    def artifact_json(self, run_id: str, path: str, value: Any) -> None:
        """Store `value` as indented JSON at `path` inside the run's artifacts."""
        self.artifact_text(run_id, path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")

    def artifact_text(self, run_id: str, path: str, text: str) -> None:
        """Store `text` at `path` inside the run's artifacts, secrets masked."""
        with translated(self._place, f"store artifact {path} of run {run_id}"):
            self._client.log_text(run_id, mask(text), path)

    def artifact_file(self, run_id: str, file: Path, folder: str = "") -> None:
        """Store a local file under `folder` inside the run's artifacts."""
        with translated(self._place, f"store {file} with run {run_id}"):
            self._client.log_artifact(run_id, str(file), folder or None)

    def artifact_folder(self, run_id: str, source: Path, folder: str) -> None:
        """Store all files of a local folder under `folder` inside the run's artifacts."""
        with translated(self._place, f"store {source} with run {run_id}"):
            self._client.log_artifacts(run_id, str(source), folder)

    def register(self, run_id: str, artifact: str, name: str, tags: Mapping[str, str], alias: str) -> str:
        """Make the artifact folder of a run a version of the registered model `name`, which then has `alias`; return its number.

        A version that the run already has there is taken again, with the new tags.
        """
        from mlflow.exceptions import MlflowException

        with translated(self._place, f"register {artifact} of run {run_id} as {name!r}"):
            try:
                self._client.create_registered_model(name)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            source = f"{self._client.get_run(run_id).info.artifact_uri}/{artifact}"
            known = [one for one in self._client.search_model_versions(f"name = '{_quotable(name)}'") if one.run_id == run_id]
            version = str((known or [self._client.create_model_version(name, source, run_id)])[0].version)
            for key, value in tags.items():
                self._client.set_model_version_tag(name, version, key, value)
            self._client.set_registered_model_alias(name, alias, version)
        return version

    def finish(self, run_id: str, status: str = "FINISHED") -> None:
        """End a run as FINISHED, FAILED or KILLED."""
        if status not in STATUSES:
            raise ValueError(f"status {status!r} is not one of {', '.join(STATUSES)}")
        with translated(self._place, f"finish run {run_id}"):
            self._client.set_terminated(run_id, status=status)
        self._logged.pop(run_id, None)

    def find(self, identity: str, status: str = "FINISHED") -> TrackedRun | None:
        """Return the newest run of this experiment with `identity` and `status`, or None."""
        found = self._search(f"tags.`{TAG_IDENTITY}` = '{_quotable(identity)}' and attributes.status = '{_quotable(status)}'", limit=1)
        return found[0] if found else None

    def recent(self, kind: str, limit: int) -> tuple[TrackedRun, ...]:
        """Return the newest FINISHED runs of `kind`, newest first."""
        return self._search(f"tags.`{TAG_KIND}` = '{_quotable(kind)}' and attributes.status = 'FINISHED'", limit)

    def children(self, parent: str) -> tuple[TrackedRun, ...]:
        """Return the runs under `parent`, newest first."""
        return self._search(f"tags.`{_TAG_PARENT}` = '{_quotable(parent)}'", limit=1_000)

    def matching(self, prefix: str) -> tuple[TrackedRun, ...]:
        """Return the runs of this experiment whose id begins with `prefix`, newest first."""
        return tuple(run for run in self._search("", limit=_RUNS_LOOKED_THROUGH) if run.run_id.startswith(prefix))

    def run(self, run_id: str) -> TrackedRun:
        """Return a run as it stands now."""
        with translated(self._place, f"read run {run_id}"):
            return _tracked(self._client.get_run(run_id))

    def history(self, run_id: str, key: str) -> tuple[tuple[int, float], ...]:
        """Return a metric's values as (step, value), by step."""
        with translated(self._place, f"read metric {key} of run {run_id}"):
            return tuple(sorted((int(entry.step), float(entry.value)) for entry in self._client.get_metric_history(run_id, key)))

    def read_json(self, run_id: str, path: str) -> Any:
        """Return the JSON artifact at `path` of a run."""
        with tempfile.TemporaryDirectory() as folder, translated(self._place, f"read artifact {path} of run {run_id}"):
            text = Path(self._client.download_artifacts(run_id, path, folder)).read_text(encoding="utf-8")
        return json.loads(text)

    def download(self, run_id: str, path: str, folder: Path) -> Path:
        """Copy the artifact file or folder at `path` of a run into the existing `folder` and return where it is."""
        with translated(self._place, f"read artifact {path} of run {run_id}"):
            return Path(self._client.download_artifacts(run_id, path, str(folder)))

    @contextmanager
    def system_metrics(self, run_id: str) -> Iterator[None]:
        """While the block runs, log CPU, memory, disk and network (and GPUs where NVIDIA's library is) of this host every 5 s.

        Does nothing with `tracking.system_metrics=false`. A block shorter than one period logs nothing. The sampling thread belongs to
        this process; it never stops the block, whatever happens to it.
        """
        if not self._tracking.system_metrics:
            yield
            return
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        with translated(self._place, f"start system metrics of run {run_id}"):
            monitor = SystemMetricsMonitor(
                run_id, sampling_interval=_SYSTEM_METRICS_EVERY_S, resume_logging=True, tracking_uri=self._place.uri
            )
        monitor.start()
        try:
            yield
        finally:
            monitor.finish()

    def _exists(self, run_id: str) -> bool:
        from mlflow.exceptions import MlflowException

        try:
            return str(self._client.get_run(run_id).info.lifecycle_stage) == "active"
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise

    def _find_or_create_experiment(self, name: str) -> str:
        with store_lock(self._place):
            known = self._client.get_experiment_by_name(name)
            if known is None:
                return str(self._client.create_experiment(name, artifact_location=self._place.artifacts))
        if known.lifecycle_stage != "active":
            raise TrackingError(
                f"Experiment {name!r} at {self.uri} is deleted. Choose another tracking.experiment, or restore it: "
                f"mlflow experiments restore --experiment-id {known.experiment_id}"
            )
        return str(known.experiment_id)

    def _log_params(self, run_id: str, params: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        entries = [Param(key, value) for key, value in params.items()]
        with translated(self._place, f"log parameters of run {run_id}"):
            for start in range(0, len(entries), PARAMS_PER_BATCH):
                self._client.log_batch(run_id, params=entries[start : start + PARAMS_PER_BATCH])

    def _steps_of(self, run_id: str) -> set[tuple[str, int]]:
        """Return the (metric, step) pairs that a run has; read once, for a run that this tracker has not started."""
        if run_id not in self._logged:
            with translated(self._place, f"read metrics of run {run_id}"):
                keys = [key for key in self._client.get_run(run_id).data.metrics if not key.startswith("system/")]
                pairs = {(key, int(entry.step)) for key in keys for entry in self._client.get_metric_history(run_id, key)}
            self._logged[run_id] = pairs
        return self._logged[run_id]

    def _search(self, condition: str, limit: int) -> tuple[TrackedRun, ...]:
        experiment = self.experiment()
        with translated(self._place, "search runs"):
            found = self._client.search_runs([experiment], condition, order_by=["attributes.start_time DESC"], max_results=limit)
        return tuple(_tracked(run) for run in found)


def _quotable(value: str) -> str:
    if "'" in value or "`" in value:
        raise ValueError(f"{value!r} cannot be searched for: it contains a quote")
    return value


def _tracked(run: Any) -> TrackedRun:
    return TrackedRun(
        run_id=str(run.info.run_id),
        name=str(run.info.run_name),
        status=str(run.info.status),
        tags=dict(run.data.tags),
        params=dict(run.data.params),
        metrics=dict(run.data.metrics),
    )
