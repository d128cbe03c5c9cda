"""Runs in MLflow: start, resume, log, finish and find them, each call naming its run.

One `Tracker` serves one driver process. A run that it started or resumed is open until it is finished: what is logged for it goes through
the journal (`writer.py`), costs the caller next to nothing, and waits there while MLflow is away. Starting and resuming need MLflow, as do
reading and what is logged for other runs: those calls return when it is stored, or raise.
"""

import json
import math
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.console import Console
from crossmesh.files import canonical_json, digest_text, read_json
from crossmesh.track.client import LazyClient, TrackingError, open_experiment, run_exists, tracking_place, translated
from crossmesh.track.flatten import PARAM_LIMIT, PARAMS_PER_BATCH, TAG_LIMIT, flatten, metric_name, split_long
from crossmesh.track.journal import Entry
from crossmesh.track.local_store import VERSIONS, LocalStore, Wanted
from crossmesh.track.masking import mask
from crossmesh.track.provenance import Provenance, environment_text
from crossmesh.track.sender import Sender, metric_entry, spool
from crossmesh.track.system import sampling
from crossmesh.track.tracked_run import TAG_EMULATED, TAG_IDENTITY, TAG_KIND, TAG_PROVENANCE, TAG_SCIENCE, TAG_SYSTEM, TrackedRun
from crossmesh.track.views import NOTE, NOTE_TAG, VIEWS
from crossmesh.track.writer import Writer

METRIC_NAMES = "records/metric_names.json"
"""Artifact of a run: what its metrics are called whose names MLflow does not take."""
UI_PORT = 5000
STATUSES = ("FINISHED", "FAILED", "KILLED")
_TAG_PARENT = "mlflow.parentRunId"
_TAG_UNDER = "crossmesh.under."
"""With the id of a run behind it: this run belongs under that one too."""
_TAG_COMMIT = "mlflow.source.git.commit"
_PATIENCE_S = 15.0
"""How long the end of a run, or a call that reads, waits for MLflow to take what is logged, once it is known to be away."""
_PAGE = 5_000
"""Runs of one answer of a search."""


@dataclass
class _OpenRun:
    """What is remembered of a run between start and finish."""

    started_ms: int
    logged: set[tuple[str, int]]
    """(metric, step) pairs that it has or that are on their way."""
    names: dict[str, str] = field(default_factory=dict)
    """What its metrics are called by who logs them, by the names that MLflow has."""


class Tracker:
    """MLflow for one driver: `tracking` says where and under which experiment, `storage` where the default place and the journals are.

    What ended jobs left in a journal is sent first. `say` hears, from any thread, that MLflow went away or came back.

    Raises:
        InputError: `tracking.uri` is relative, or of a kind that MLflow does not know.
        TrackingError: the store cannot be opened or reached.
    """

    def __init__(self, tracking: TrackingSpec, storage: StorageSpec, say: Callable[[str], None] | None = None) -> None:
        self._tracking = tracking
        self._place = tracking_place(tracking, storage)
        self._client: Any = LazyClient(self._place)
        self._local = LocalStore(self._place.database) if self._place.database else None
        self._experiment_id: str | None = None
        self._open: dict[str, _OpenRun] = {}
        self._journals = storage.path / "journal" / digest_text(self._place.uri)[:16]
        self._sender = Sender(self._place, self._client)
        self._say = say or Console().say
        self._writer = Writer(self._place, self._sender, self._journals, self._say)
        self.experiment()  # Says now that a server is away, not after the download of a model.
        try:
            self._writer.replay()
        except TrackingError as error:
            self._say(str(error))

    def open_store(self) -> None:
        """Import MLflow and open its store now; a local store is read without, so both wait for the first record otherwise."""
        self._client.get_experiment(self.experiment())

    @property
    def uri(self) -> str:
        """The tracking URI, as it may be printed."""
        return self._place.shown

    def prepare_views(self, address: str) -> dict[str, str]:
        """Store the prepared views with the experiment and return where each is, by title, for a UI at `address`."""
        experiment = self.experiment()
        with translated(self._place, f"prepare the views of experiment {self._tracking.experiment!r}"):
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
        return self._place.artifacts is None

    def ui_arguments(self, port: int) -> list[str]:
        """Return the program and arguments of an MLflow UI on 127.0.0.1, for a store that has none."""
        where = ["--host", "127.0.0.1", "--port", str(port), "--backend-store-uri", self.uri]
        return [sys.executable, "-m", "mlflow", "ui", *where]

    def experiment(self) -> str:
        """Return the id of the experiment `tracking.experiment`, made on first use."""
        if self._experiment_id is None:
            known = self._local.experiment(self._tracking.experiment) if self._local else None
            self._experiment_id = known or open_experiment(self._place, self._client, self._tracking.experiment)
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
        emulated: bool = False,
    ) -> str:
        """Start a run and return its id.

        Args:
            name: Shown in the UI, e.g. `torch`.
            kind: What it is: `experiment`, `train`, `evaluate`, ...
            parent: Run id of the run it belongs under.
            identity: What `find` looks for; equal identities mean equal results.
            tags: More tags; a value over 8,000 characters becomes an artifact under `tags/`.
            params: A dataclass or mapping, flattened to dotted keys; a value over 6,000 characters becomes an artifact under `params/`.
            emulated: whether it computes on CPU devices under the name of other hardware; a tag and a parameter say so.
        """
        own = {TAG_KIND: kind, _TAG_PARENT: parent, TAG_IDENTITY: identity, TAG_EMULATED: "true" if emulated else None}
        wanted = {key: mask(value) for key, value in {**(tags or {}), **own}.items() if value is not None}
        short_tags, files = split_long(wanted, TAG_LIMIT, "tags")
        short_params, more_files = split_long(_flat(params, emulated=emulated), PARAM_LIMIT, "params")
        experiment = self.experiment()
        with translated(self._place, f"start run {name!r}"):
            run_id = str(self._client.create_run(experiment, tags=short_tags, run_name=name).info.run_id)
        self._log_params(run_id, short_params)
        self._open[run_id] = _OpenRun(_now_ms(), set())
        for path, text in {**files, **more_files}.items():
            self.artifact_text(run_id, path, text)
        return run_id

    def resume(self, run_id: str) -> TrackedRun | None:
        """Set a run to RUNNING again and remember which (metric, step) pairs it has; None when the store has no such run (any more).

        Records of it that wait in journals are sent first. Raises `TrackingError` when that cannot be.
        """
        self._writer.replay()
        self._settle()
        self._writer.wait_elsewhere(run_id)
        with translated(self._place, f"resume run {run_id}"):
            if not run_exists(self._client, run_id):
                return None
            self._client.update_run(run_id, status="RUNNING")
            started = int(self._client.get_run(run_id).info.start_time)
        self._open[run_id] = _OpenRun(started, self._sender.steps_of(run_id))
        return self.run(run_id)

    def resume_kept(self, file: Path) -> str | None:
        """Resume the run whose id `file` keeps and return the id; None when there is no such file, or no such run (any more)."""
        try:
            run_id = str(read_json(file)["run_id"])
        except (OSError, ValueError, KeyError, TypeError):  # Absent, or damaged: either way it names no run.
            return None
        return run_id if self.resume(run_id) else None

    def metrics(self, run_id: str, values: Mapping[str, float], step: int, milliseconds: int = 0) -> int:
        """Log `values` at `step`, by default as of now; pairs that the run already has are dropped. Returns how many were new."""
        run = self._open.get(run_id)
        named = self._named(run_id, run.names if run else {}, values)
        seen = run.logged if run else self._sender.steps_of(run_id, set(named))
        new = {key: value for key, value in named.items() if (key, step) not in seen}
        if new:
            self._put(metric_entry(run_id, new, step, milliseconds or _now_ms()))
            seen.update((key, step) for key in new)
        return len(new)

    def _named(self, run_id: str, names: dict[str, str], values: Mapping[str, float]) -> dict[str, float]:
        """`values` under names that MLflow takes; other names stand in an artifact, and what is not a number is left out."""
        found: dict[str, float] = {}
        changed = False
        for name, value in values.items():
            try:
                number = float(value)
            except (TypeError, ValueError, OverflowError):
                self._say(f"The metric {name!r} is not a number ({str(value)[:40]!r}): it is left out")
                continue
            key = metric_name(name, names)
            changed |= key != name and key not in names
            names[key] = name
            found[key] = number
        if changed:
            self.artifact_json(run_id, METRIC_NAMES, {key: name for key, name in names.items() if key != name})
        return found

    def system(self, run_id: str, node: str, values: Mapping[str, float], at: float) -> None:
        """Log what a node was busy with at `at`, in seconds since 1970; the step is the seconds since the run was started."""
        if (run := self._open.get(run_id)) is None:  # It ended meanwhile.
            return
        named = {f"system/{node}/{key}" if node else f"system/{key}": value for key, value in values.items()}
        self.metrics(run_id, named, max(0, round(at - run.started_ms / 1000)), round(at * 1000))

    def tags(self, run_id: str, values: Mapping[str, str]) -> None:
        """Set tags; a value over 8,000 characters becomes an artifact under `tags/`."""
        short, files = split_long({key: mask(value) for key, value in values.items()}, TAG_LIMIT, "tags")
        self._put(Entry(run_id, "tags", short))
        for path, text in files.items():
            self.artifact_text(run_id, path, text)

    def dataset(self, run_id: str, name: str, digest: str, source: str, context: str, profile: Mapping[str, Any] | None = None) -> None:
        """Say which data a run used (`mlflow.log_input`).

        Args:
            run_id: the run.
            name: shown in the UI.
            digest: of what was used; in full a tag of the input, in MLflow's own field its first 36 characters.
            source: where the data are, masked before it is stored.
            context: what for: `training`, `evaluation`, ...
            profile: counts to show, e.g. rows and tokens.
        """
        body = {"name": name, "digest": digest, "source": json.dumps({"uri": mask(source)}), "source_type": "crossmesh", "context": context}
        self._put(Entry(run_id, "dataset", {**body, "profile": json.dumps(profile or {})}))

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
        self._put(Entry(run_id, "text", {"path": path, "text": mask(text)}))

    def artifact_file(self, run_id: str, file: Path, folder: str = "") -> None:
        """Store a local file under `folder` inside the run's artifacts, as it is now."""
        self._files(run_id, file, folder)

    def artifact_folder(self, run_id: str, source: Path, folder: str) -> None:
        """Store all files of a local folder under `folder` inside the run's artifacts, as they are now."""
        self._files(run_id, source, folder)

    def register(self, run_id: str, artifact: str, name: str, tags: Mapping[str, str], alias: str = "") -> None:
        """Make the artifact folder of a run a version of the registered model `name`, which then has `alias`, and tag the run with it.

        A version that the run already has there is taken again, with the new tags.
        """
        self._put(Entry(run_id, "version", {"artifact": artifact, "name": name, "tags": dict(tags), "alias": alias}))

    def finish(self, run_id: str, status: str = "FINISHED") -> None:
        """End a run as FINISHED, FAILED or KILLED, and wait until all that was logged is stored.

        While MLflow is away that wait is bounded; it is said then where the rest lies, and the next job sends it.
        """
        if status not in STATUSES:
            raise ValueError(f"status {status!r} is not one of {', '.join(STATUSES)}")
        self._put(Entry(run_id, "status", {"status": status, "at": _now_ms()}))
        self.leave(run_id)

    def leave(self, run_id: str) -> None:
        """Let go of a run as it is, as `finish` does: another job has it now."""
        self._open.pop(run_id, None)
        self._writer.settle(_PATIENCE_S)
        if not self._open:
            self._writer.rest()

    def find(self, identity: str, status: str = "FINISHED") -> TrackedRun | None:
        """Return the newest run of this experiment with `identity` and `status`, or None."""
        found = self._search(Wanted({TAG_IDENTITY: identity}, status), limit=1)
        return found[0] if found else None

    def recent(self, kind: str, without: Mapping[str, str] | None = None) -> tuple[TrackedRun, ...]:
        """Return all FINISHED runs of `kind`, newest first; with `without` those that have these parameters with other values."""
        return self._search(Wanted({TAG_KIND: kind}, "FINISHED", without or {}))

    def children(self, parent: str) -> tuple[TrackedRun, ...]:
        """Return the runs under `parent`, newest first: those that were made for it, then those that were there before."""
        return self._search(Wanted({_TAG_PARENT: parent})) + self._search(Wanted({f"{_TAG_UNDER}{parent}": "true"}))

    def adopt(self, run_id: str, parent: str) -> None:
        """Put a run that may have been made by itself, or for another one, under `parent` too."""
        above = self.run(run_id).tags.get(_TAG_PARENT)
        if above != parent:
            self.tags(run_id, {f"{_TAG_UNDER}{parent}": "true"} if above else {_TAG_PARENT: parent})

    def matching(self, prefix: str, kind: str = "") -> tuple[TrackedRun, ...]:
        """Return the runs of this experiment whose id begins with `prefix`, newest first; with `kind` those of that kind."""
        if not prefix.isalnum() and prefix:  # No id has other signs, which MLflow may take for more than themselves.
            return ()
        return self._search(Wanted({TAG_KIND: kind} if kind else {}, prefix=prefix))

    def run(self, run_id: str) -> TrackedRun:
        """Return a run as it stands now."""
        if (found := self._local_run(run_id)) is not None:
            return found
        self._settle()
        with translated(self._place, f"read run {run_id}"):
            return _tracked(self._client.get_run(run_id))

    def has_run(self, run_id: str) -> bool:
        """Whether the store has a run of this whole id."""
        if self._local_run(run_id) is not None:
            return True
        with translated(self._place, f"read run {run_id}"):
            return run_exists(self._client, run_id)

    def _local_run(self, run_id: str) -> TrackedRun | None:
        """A run of this experiment where the store is read without MLflow, which takes seconds to import."""
        found = self._search(Wanted(prefix=run_id), limit=1) if self._local and run_id.isalnum() else ()
        return found[0] if found and found[0].run_id == run_id else None

    def history(self, run_id: str, key: str) -> tuple[tuple[int, float], ...]:
        """Return a metric's values as (step, value), by step."""
        self._settle()
        with translated(self._place, f"read metric {key} of run {run_id}"):
            return tuple(sorted((int(entry.step), float(entry.value)) for entry in self._client.get_metric_history(run_id, key)))

    def histories(self, run_ids: Sequence[str], key: str) -> dict[str, tuple[tuple[int, float], ...]]:
        """Return a metric's values as (step, value), by step, of each run that has it."""
        self._settle()
        found = self._local.histories(run_ids, key) if self._local else None
        if found is not None:
            return found
        return {run_id: values for run_id in run_ids if (values := self.history(run_id, key))}

    def means(self, run_ids: Sequence[str], key: str) -> dict[str, float]:
        """Return the mean of all values of a metric, those that are no number left out, of each run that has it."""
        self._settle()
        found = self._local.means(run_ids, key) if self._local else None
        if found is not None:
            return found
        values = {run_id: [value for _, value in self.history(run_id, key)] for run_id in run_ids}
        return {run_id: _mean(own) for run_id, own in values.items() if own}

    def read_json(self, run_id: str, path: str) -> Any:
        """Return the JSON artifact at `path` of a run."""
        self._settle()
        if local := self._place.local_artifact(run_id, path):
            return read_json(local)
        with tempfile.TemporaryDirectory() as folder, translated(self._place, f"read artifact {path} of run {run_id}"):
            text = Path(self._client.download_artifacts(run_id, path, folder)).read_text(encoding="utf-8")
        return json.loads(text)

    def download(self, run_id: str, path: str, folder: Path) -> Path:
        """Copy the artifact file or folder at `path` of a run into the existing `folder` and return where it is."""
        self._settle()
        with translated(self._place, f"read artifact {path} of run {run_id}"):
            return Path(self._client.download_artifacts(run_id, path, str(folder)))

    @contextmanager
    def system_metrics(self, run_id: str) -> Iterator[None]:
        """While the block runs, log what this host is busy with (`system.py`); does nothing with `tracking.system_metrics=false`."""
        if not self._tracking.system_metrics:
            yield
            return
        with sampling(lambda values: self.system(run_id, "", values, time.time())):
            yield

    def _put(self, entry: Entry) -> None:
        """Send through the journal what belongs to an open run, and at once what does not."""
        if entry.run_id in self._open:
            self._writer.put(entry)
        else:
            self._sender.send([entry])

    def _files(self, run_id: str, source: Path, folder: str) -> None:
        """Store a file or folder; for an open run what it is now is kept until it is sent: as a link where that can be, else a copy."""
        if run_id in self._open:
            source = spool(self._journals, source)
        self._put(Entry(run_id, "files", {"source": str(source), "folder": folder}))

    def _settle(self) -> None:
        """Let reading see what was logged before."""
        self._writer.settle(_PATIENCE_S)

    def _log_params(self, run_id: str, params: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        entries = [Param(key, value) for key, value in params.items()]
        with translated(self._place, f"log parameters of run {run_id}"):
            for start in range(0, len(entries), PARAMS_PER_BATCH):
                self._client.log_batch(run_id, params=entries[start : start + PARAMS_PER_BATCH])

    def _search(self, wanted: Wanted, limit: int = 0) -> tuple[TrackedRun, ...]:
        """All runs that are `wanted`, newest first; with `limit` no more than so many. A store without a server is read itself."""
        experiment = self.experiment()
        self._settle()
        local = self._local.search(experiment, wanted, limit) if self._local else None
        if local is not None:
            return tuple(TrackedRun(run.run_id, run.name, run.status, run.tags, run.params, run.metrics) for run in local)
        return self._search_mlflow(experiment, wanted, limit)

    def _search_mlflow(self, experiment: str, wanted: Wanted, limit: int) -> tuple[TrackedRun, ...]:
        """The same from MLflow, page by page."""
        found: list[TrackedRun] = []
        token: str | None = None
        order = ["attributes.start_time DESC"]  # MLflow adds the id, so that no run falls between two pages.
        with translated(self._place, "search runs"):
            while True:
                page = self._client.search_runs([experiment], wanted.words, order_by=order, max_results=limit or _PAGE, page_token=token)
                found += [_tracked(run) for run in page]
                token = page.token
                if limit or not token:
                    return tuple(found)


def _flat(params: Any, *, emulated: bool) -> dict[str, str]:
    found = flatten(params) if params is not None else {}
    return {**found, "emulated": "true"} if emulated else found


def _now_ms() -> int:
    return int(time.time() * 1000)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan


def _tracked(run: Any) -> TrackedRun:
    return TrackedRun(
        run_id=str(run.info.run_id),
        name=str(run.info.run_name),
        status=str(run.info.status),
        tags={key: value for key, value in run.data.tags.items() if not key.startswith(VERSIONS)},
        params=dict(run.data.params),
        metrics=dict(run.data.metrics),
    )
