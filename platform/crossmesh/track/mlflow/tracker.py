"""The tracker `mlflow`: runs in an MLflow server, or in a sqlite file and a folder that it opens itself.

What is logged for an open run goes through the journal (`writer.py`), costs the caller next to nothing, and waits there while MLflow is
away. Starting and resuming need MLflow, as do reading and what is logged for other runs: those calls return when it is stored, or raise.
"""

import json
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.files import digest_text, read_json
from crossmesh.track.flatten import PARAM_LIMIT, split_long
from crossmesh.track.mlflow.client import LazyClient, open_experiment, run_exists, store_address, translated
from crossmesh.track.mlflow.journal import JournalEntry
from crossmesh.track.mlflow.limits import PARAMS_PER_BATCH, TAG_LIMIT, metric_name
from crossmesh.track.mlflow.local_store import MlflowDatabase
from crossmesh.track.mlflow.sender import Sender, metric_entry, spool
from crossmesh.track.mlflow.views import NOTE, NOTE_TAG, VIEWS
from crossmesh.track.mlflow.writer import Writer
from crossmesh.track.run_log import ModelVersion, NewRun, TrackingError, UsedDataset
from crossmesh.track.tracked_run import TrackedRun
from crossmesh.track.tracker import VERSIONS, RunQuery, Tracker

METRIC_NAMES = "records/metric_names.json"
"""Artifact of a run: what its metrics are called whose names MLflow does not take."""
UI_PORT = 5000
_PATIENCE_S = 15.0
"""How long the end of a run, or a call that reads, waits for MLflow to take what is logged, once it is known to be away."""
_PAGE = 5_000
"""Runs of one answer of a search."""


@dataclass
class _OpenRun:
    """What is remembered of a run between start and finish."""

    logged: set[tuple[str, int]] = field(default_factory=set)
    """(metric, step) pairs that it has or that are on their way."""
    names: dict[str, str] = field(default_factory=dict)
    """What its metrics are called by who logs them, by the names that MLflow has."""


class MlflowTracker(Tracker):
    """MLflow for one driver. What ended jobs left in a journal is sent first.

    Raises:
        InputError: `tracking.uri` is relative, or of a kind that MLflow does not know.
        TrackingError: the store cannot be opened or reached.
    """

    def __init__(self, tracking: TrackingSpec, storage: StorageSpec, say: Callable[[str], None] | None = None) -> None:
        super().__init__(tracking, storage, say)
        self._address = store_address(tracking, storage)
        self._client: Any = LazyClient(self._address)
        self._local = MlflowDatabase(self._address.database) if self._address.database else None
        self._experiment_id: str | None = None
        self._open: dict[str, _OpenRun] = {}
        self._journals = storage.path / "journal" / digest_text(self._address.uri)[:16]
        self._sender = Sender(self._address, self._client)
        self._writer = Writer(self._address, self._sender, self._journals, self._say)
        self.experiment()  # Says now that a server is away, not after the download of a model.
        try:
            self._writer.replay()
        except TrackingError as error:
            self._say(str(error))

    @property
    def uri(self) -> str:
        """The tracking URI, as it may be printed."""
        return self._address.shown

    @property
    def title(self) -> str:
        """The product."""
        return "MLflow"

    @property
    def opens_slowly(self) -> bool:
        """A store without a server is opened by importing MLflow."""
        return not self.has_ui

    def open_store(self) -> None:
        """Import MLflow and open its store now; a local store is read without, so both wait for the first record otherwise."""
        self._client.get_experiment(self.experiment())

    def prepare_views(self, address: str) -> dict[str, str]:
        """Store the prepared views with the experiment and return where each is, by title, for a UI at `address`."""
        experiment = self.experiment()
        with translated(self._address, f"prepare the views of experiment {self._tracking.experiment!r}"):
            there = self._client.get_experiment(experiment).tags
            wanted = dict(view.tag for view in VIEWS) | ({} if NOTE_TAG in there else {NOTE_TAG: NOTE})
            for key, value in wanted.items():
                if there.get(key) != value:
                    self._client.set_experiment_tag(experiment, key, value)
        return {view.title: f"{address}{view.path(experiment)}" for view in VIEWS}

    @property
    def ui_command(self) -> str:
        """What to type, or where to look, to see the runs."""
        return self.uri if self.has_ui else shlex.join(self.ui_arguments(UI_PORT))

    @property
    def has_ui(self) -> bool:
        """Whether the store is a server with a UI of its own."""
        return self._address.artifacts is None

    def ui_arguments(self, port: int) -> list[str]:
        """Return the program and arguments of an MLflow UI on 127.0.0.1, for a store that has none."""
        where = ["--host", "127.0.0.1", "--port", str(port), "--backend-store-uri", self.uri]
        return [sys.executable, "-m", "mlflow", "ui", *where]

    def experiment(self) -> str:
        """Return the id of the experiment `tracking.experiment`, made on first use."""
        if self._experiment_id is None:
            known = self._local.experiment(self._tracking.experiment) if self._local else None
            self._experiment_id = known or open_experiment(self._address, self._client, self._tracking.experiment)
        return self._experiment_id

    def create_run(self, run: NewRun) -> str:
        """Start a run; tags over 8,000 and parameters over 6,000 characters become artifacts."""
        tags, files = split_long(run.tags, TAG_LIMIT, "tags")
        params, more_files = split_long(run.params, PARAM_LIMIT, "params")
        experiment = self.experiment()
        with translated(self._address, f"start run {run.name!r}"):
            run_id = str(self._client.create_run(experiment, tags=tags, run_name=run.name).info.run_id)
        self._log_params(run_id, params)
        self._open[run_id] = _OpenRun()
        for path, text in {**files, **more_files}.items():
            self.log_text(run_id, path, text)
        return run_id

    def resume_run(self, run_id: str) -> float | None:
        """Continue a run, and remember which (metric, step) pairs it has.

        Records of it that wait in journals are sent first. Raises `TrackingError` when that cannot be.
        """
        self._writer.replay()
        self._settle()
        self._writer.wait_elsewhere(run_id)
        with translated(self._address, f"resume run {run_id}"):
            if not run_exists(self._client, run_id):
                return None
            self._client.update_run(run_id, status="RUNNING")
            started_ms = int(self._client.get_run(run_id).info.start_time)
        self._open[run_id] = _OpenRun(self._sender.steps_of(run_id))
        return started_ms / 1000

    def log_metrics(self, run_id: str, values: Mapping[str, float], step: int, milliseconds: int) -> None:
        """Log `values` at `step`; pairs that the run already has are dropped."""
        run = self._open.get(run_id)
        named = self._named(run_id, run.names if run else {}, values)
        seen = run.logged if run else self._sender.steps_of(run_id, set(named))
        new = {key: value for key, value in named.items() if (key, step) not in seen}
        if new:
            self._put(metric_entry(run_id, new, step, milliseconds))
            seen.update((key, step) for key in new)

    def _named(self, run_id: str, names: dict[str, str], values: Mapping[str, float]) -> dict[str, float]:
        """`values` under names that MLflow takes; other names stand in an artifact."""
        keyed: dict[str, float] = {}
        changed = False
        for name, value in values.items():
            key = metric_name(name, names)
            changed |= key != name and key not in names
            names[key] = name
            keyed[key] = value
        if changed:
            self.artifact_json(run_id, METRIC_NAMES, {key: name for key, name in names.items() if key != name})
        return keyed

    def log_tags(self, run_id: str, values: Mapping[str, str]) -> None:
        """Set tags; a value over 8,000 characters becomes an artifact under `tags/`."""
        short, files = split_long(values, TAG_LIMIT, "tags")
        self._put(JournalEntry(run_id, "tags", short))
        for path, text in files.items():
            self.log_text(run_id, path, text)

    def log_dataset(self, run_id: str, dataset: UsedDataset) -> None:
        """As an input of the run: the digest in full is a tag of the input, MLflow's own field has its first 36 characters."""
        body = {
            "name": dataset.name,
            "digest": dataset.digest,
            "source": json.dumps({"uri": dataset.source}),
            "source_type": "crossmesh",
            "context": dataset.context,
            "profile": json.dumps(dataset.profile),
        }
        self._put(JournalEntry(run_id, "dataset", body))

    def log_text(self, run_id: str, path: str, text: str) -> None:
        """Keep `text` as the artifact `path`."""
        self._put(JournalEntry(run_id, "text", {"path": path, "text": text}))

    def log_artifact(self, run_id: str, source: Path, folder: str) -> None:
        """Store a file or folder; for an open run what it is now is kept until it is sent: as a link where that can be, else a copy."""
        if run_id in self._open:
            source = spool(self._journals, source)
        self._put(JournalEntry(run_id, "files", {"source": str(source), "folder": folder}))

    def register_model(self, run_id: str, version: ModelVersion) -> None:
        """Make the version; one that the run already has is taken again, with the new tags."""
        body = {"artifact": version.artifact, "name": version.name, "tags": dict(version.tags), "alias": version.alias}
        self._put(JournalEntry(run_id, "version", body))

    def end_run(self, run_id: str, status: str | None) -> None:
        """End a run, or let go of it, and wait until all that was logged is stored.

        While MLflow is away that wait is bounded; it is said then where the rest lies, and the next job sends it.
        """
        if status is not None:
            self._put(JournalEntry(run_id, "status", {"status": status, "at": int(time.time() * 1000)}))
        self._open.pop(run_id, None)
        self._writer.settle(_PATIENCE_S)
        if not self._open:
            self._writer.rest()

    def run(self, run_id: str) -> TrackedRun:
        """Return a run as it stands now, of whichever experiment."""
        if (local := self._local_run(run_id)) is not None:
            return local
        self._settle()
        with translated(self._address, f"read run {run_id}"):
            return _tracked(self._client.get_run(run_id))

    def has_run(self, run_id: str) -> bool:
        """Whether the store has a run of this whole id."""
        if self._local_run(run_id) is not None:
            return True
        with translated(self._address, f"read run {run_id}"):
            return run_exists(self._client, run_id)

    def _local_run(self, run_id: str) -> TrackedRun | None:
        """A run of this experiment where the store is read without MLflow, which takes seconds to import."""
        matches = self.search(RunQuery(prefix=run_id), limit=1) if self._local and run_id.isalnum() else ()
        return matches[0] if matches and matches[0].run_id == run_id else None

    def history(self, run_id: str, key: str) -> tuple[tuple[int, float], ...]:
        """Return a metric's values as (step, value), by step; as MLflow gives them."""
        self._settle()
        with translated(self._address, f"read metric {key} of run {run_id}"):
            return tuple(sorted((int(entry.step), float(entry.value)) for entry in self._client.get_metric_history(run_id, key)))

    def histories(self, run_ids: Sequence[str], key: str) -> dict[str, tuple[tuple[int, float], ...]]:
        """Return a metric's values as (step, value), by step, of each run that has it."""
        self._settle()
        local = self._local.histories(run_ids, key) if self._local else None
        if local is not None:
            return local
        return {run_id: values for run_id in run_ids if (values := self.history(run_id, key))}

    def means(self, run_ids: Sequence[str], key: str) -> dict[str, float]:
        """Return the mean of all values of a metric, those that are no number left out, of each run that has it."""
        self._settle()
        local = self._local.means(run_ids, key) if self._local else None
        return super().means(run_ids, key) if local is None else local

    def read_json(self, run_id: str, path: str) -> Any:
        """Return the JSON artifact at `path` of a run."""
        self._settle()
        local = self._address.local_artifact(run_id, path)
        return read_json(local) if local else super().read_json(run_id, path)

    def download(self, run_id: str, path: str, folder: Path) -> Path:
        """Copy the artifact file or folder at `path` of a run into the existing `folder` and return where it is."""
        self._settle()
        with translated(self._address, f"read artifact {path} of run {run_id}"):
            return Path(self._client.download_artifacts(run_id, path, str(folder)))

    def _put(self, entry: JournalEntry) -> None:
        """Send through the journal what belongs to an open run, and at once what does not."""
        if entry.run_id in self._open:
            self._writer.put(entry)
        else:
            self._sender.send([entry])

    def _settle(self) -> None:
        """Let reading see what was logged before."""
        self._writer.settle(_PATIENCE_S)

    def _log_params(self, run_id: str, params: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        entries = [Param(key, value) for key, value in params.items()]
        with translated(self._address, f"log parameters of run {run_id}"):
            for start in range(0, len(entries), PARAMS_PER_BATCH):
                self._client.log_batch(run_id, params=entries[start : start + PARAMS_PER_BATCH])

    def search(self, query: RunQuery, limit: int = 0) -> tuple[TrackedRun, ...]:
        """All runs that match, newest first; with `limit` no more than so many. A store without a server is read itself."""
        experiment = self.experiment()
        self._settle()
        local = self._local.search(experiment, query, limit) if self._local else None
        return self._search_mlflow(experiment, query, limit) if local is None else local

    def _search_mlflow(self, experiment: str, query: RunQuery, limit: int) -> tuple[TrackedRun, ...]:
        """The same from MLflow, page by page."""
        matches: list[TrackedRun] = []
        token: str | None = None
        text = search_text(query)
        order = ["attributes.start_time DESC"]  # MLflow adds the id, so that no run falls between two pages.
        with translated(self._address, "search runs"):
            while True:
                page = self._client.search_runs([experiment], text, order_by=order, max_results=limit or _PAGE, page_token=token)
                matches += [_tracked(run) for run in page]
                token = page.token
                if limit or not token:
                    return tuple(matches)


def search_text(query: RunQuery) -> str:
    """A query in MLflow's language."""
    parts = [f"tags.`{_quotable(key)}` = '{_quotable(value)}'" for key, value in query.tags.items()]
    parts += [f"attributes.status = '{_quotable(query.status)}'"] if query.status else []
    parts += [f"params.`{_quotable(key)}` != '{_quotable(value)}'" for key, value in query.without.items()]
    parts += [f"attributes.run_id LIKE '{_quotable(query.prefix)}%'"] if query.prefix else []
    return " and ".join(parts)


def _quotable(value: str) -> str:
    if "'" in value or "`" in value:
        raise ValueError(f"{value!r} cannot be searched for: it contains a quote")
    return value


def _tracked(run: Any) -> TrackedRun:
    return TrackedRun(
        run_id=str(run.info.run_id),
        name=str(run.info.run_name),
        status=str(run.info.status),
        tags={key: value for key, value in run.data.tags.items() if not key.startswith(VERSIONS)},
        params=dict(run.data.params),
        metrics=dict(run.data.metrics),
    )
