"""Stores journal entries at MLflow, several in one request where they allow it. It neither keeps entries nor tries again (`writer.py`).

Every entry can be sent twice without harm: a metric that MLflow already has at that step is left out when the last request's fate is not
known, and all else is a setting that is made again.
"""

import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from crossmesh.track.mlflow.client import StoreAddress, translated
from crossmesh.track.mlflow.journal import JournalEntry
from crossmesh.track.mlflow.limits import METRICS_PER_BATCH
from crossmesh.track.tracked_run import TAG_VERSION

_SPOOL = "files"
"""Folder beside the journals with the files that wait to be sent."""
_DIGEST_LIMIT = 36
"""Longest digest of a data set that MLflow keeps, in characters."""


def metric_entry(run_id: str, values: dict[str, float], step: int, milliseconds: int) -> JournalEntry:
    """Values of one step, at a time since 1970."""
    return JournalEntry(run_id, "metrics", [[key, value, milliseconds, step] for key, value in values.items()])


def one_request(entries: Sequence[JournalEntry]) -> tuple[int, list[JournalEntry]]:
    """Return how many of the first `entries` go in one request, and those: metrics of one run up to MLflow's limit, else a single one."""
    first = entries[0]
    if first.kind != "metrics":
        return 1, [first]
    taken, values = 0, 0
    for entry in entries:
        if (entry.run_id, entry.kind) != (first.run_id, "metrics") or (taken and values + len(entry.body) > METRICS_PER_BATCH):
            break
        taken, values = taken + 1, values + len(entry.body)
    return taken, list(entries[:taken])


def spool(folder: Path, source: Path) -> Path:
    """Keep a file or folder as it is now, beside the journals in `folder`, until it is sent; as links where that can be, else a copy."""
    kept = folder / _SPOOL / uuid.uuid4().hex / source.name
    kept.parent.mkdir(parents=True)
    if source.is_dir():
        shutil.copytree(source, kept, copy_function=_link_or_copy)
    else:
        _link_or_copy(source, kept)
    return kept


def _link_or_copy(source: str | Path, target: str | Path) -> None:
    try:
        Path(target).hardlink_to(Path(source).resolve())
    except OSError:  # Another file system, or one without links.
        shutil.copy2(source, target)


class Sender:
    """Sends entries through a client of `address`. Raises `TrackingError` when MLflow is away or refuses."""

    def __init__(self, address: StoreAddress, client: Any) -> None:
        self._address = address
        self._client = client
        self._ways: dict[str, Callable[[str, Any], object]] = {
            "tags": self._tags,
            "text": self._text,
            "files": self._files,
            "dataset": self._dataset,
            "version": self._version,
            "status": self._status,
        }

    def send(self, entries: Sequence[JournalEntry], *, again: bool = False) -> int:
        """Send the first of `entries` that go in one request and return their number; `again`: MLflow may have some of them."""
        count, batch = one_request(entries)
        first = batch[0]
        with translated(self._address, f"log {first.kind} of run {first.run_id}"):
            if first.kind == "metrics":
                self._metrics(first.run_id, [value for entry in batch for value in entry.body], again)
            else:
                self._ways[first.kind](first.run_id, first.body)
        return count

    def steps_of(self, run_id: str, keys: set[str] | None = None) -> set[tuple[str, int]]:
        """Return the (metric, step) pairs of a run; by default of all metrics but those of the system."""
        with translated(self._address, f"read metrics of run {run_id}"):
            known = self._client.get_run(run_id).data.metrics
            wanted = [key for key in known if (key in keys if keys is not None else not key.startswith("system/"))]
            return {(key, int(entry.step)) for key in wanted for entry in self._client.get_metric_history(run_id, key)}

    def _metrics(self, run_id: str, values: list[list[Any]], again: bool) -> None:
        from mlflow.entities import Metric

        there = self.steps_of(run_id, {key for key, *_ in values}) if again else set()
        new = [Metric(key, value, at, step) for key, value, at, step in values if (key, step) not in there]
        for start in range(0, len(new), METRICS_PER_BATCH):
            self._client.log_batch(run_id, metrics=new[start : start + METRICS_PER_BATCH], synchronous=True)

    def _tags(self, run_id: str, body: dict[str, str]) -> None:
        from mlflow.entities import RunTag

        self._client.log_batch(run_id, tags=[RunTag(key, value) for key, value in body.items()], synchronous=True)

    def _text(self, run_id: str, body: dict[str, str]) -> None:
        self._client.log_text(run_id, body["text"], body["path"])

    def _files(self, run_id: str, body: dict[str, Any]) -> None:
        source = Path(body["source"])
        kept = source.parent.parent.name == _SPOOL
        if kept and not source.exists():  # Sent before; the process ended before it could say so.
            return
        if source.is_dir():
            self._client.log_artifacts(run_id, str(source), body["folder"])
        else:
            self._client.log_artifact(run_id, str(source), body["folder"] or None)
        if kept:
            shutil.rmtree(source.parent, ignore_errors=True)

    def _dataset(self, run_id: str, body: dict[str, str]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        tags = [InputTag("mlflow.data.context", body["context"]), InputTag("digest", body["digest"])]
        dataset = Dataset(body["name"], body["digest"][:_DIGEST_LIMIT], body["source_type"], body["source"], profile=body["profile"])
        self._client.log_inputs(run_id, [DatasetInput(dataset, tags)])

    def _version(self, run_id: str, body: dict[str, Any]) -> None:
        """Make an artifact folder of a run a version of a registered model; the one that the run already has is taken again."""
        from mlflow.exceptions import MlflowException

        name, alias = body["name"], body["alias"]
        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        source = f"{self._client.get_run(run_id).info.artifact_uri}/{body['artifact']}"
        known = [version for version in self._client.search_model_versions(f"run_id = '{run_id}'") if version.name == name]
        version = str((known or [self._client.create_model_version(name, source, run_id)])[0].version)
        for key, value in body["tags"].items():
            self._client.set_model_version_tag(name, version, key, value)
        if alias:
            self._client.set_registered_model_alias(name, alias, version)
        self._client.set_tag(run_id, TAG_VERSION, f"models:/{name}/{version}")

    def _status(self, run_id: str, body: dict[str, Any]) -> None:
        self._client.set_terminated(run_id, status=body["status"], end_time=body["at"])
