"""A tracker as another package would add it: what runs are told, as lines of JSON in a folder, which nothing reads back."""

import json
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.track.run_log import NewRun, RunLog


class JsonLinesTracker(RunLog):
    """A file of JSON lines a run, and a folder of its artifacts, under `storage.root/jsonlines`."""

    def __init__(self, tracking: TrackingSpec, storage: StorageSpec, say: Callable[[str], None] | None = None) -> None:
        self._folder = storage.path / "jsonlines" / tracking.experiment

    def _write(self, run_id: str, **record: Any) -> None:
        with (self._folder / f"{run_id}.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"at": time.time(), **record}) + "\n")

    def create_run(self, run: NewRun) -> str:
        self._folder.mkdir(parents=True, exist_ok=True)
        run_id = uuid.uuid4().hex
        self._write(run_id, run=asdict(run))
        return run_id

    def resume_run(self, run_id: str) -> float | None:
        file = self._folder / f"{run_id}.jsonl"
        return float(json.loads(file.open(encoding="utf-8").readline())["at"]) if file.is_file() else None

    def log_metrics(self, run_id: str, values: Mapping[str, float], step: int, milliseconds: int) -> None:
        self._write(run_id, step=step, at=milliseconds / 1000, metrics=dict(values))

    def log_tags(self, run_id: str, values: Mapping[str, str]) -> None:
        self._write(run_id, tags=dict(values))

    def log_artifact(self, run_id: str, source: Path, folder: str) -> None:
        target = self._folder / run_id / folder
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)

    def end_run(self, run_id: str, status: str | None) -> None:
        self._write(run_id, status=status)
