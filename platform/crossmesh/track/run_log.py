"""What a tracker gets: the interface of whatever keeps runs, in six methods and three that only some trackers make use of.

Values arrive ready to be kept: flattened, as plain text and numbers, secrets masked. Whether a run is wanted, and what it says, is decided
by those who call `Tracker` (`tracker.py`), which reads runs back as well.
"""

import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from crossmesh.errors import CrossmeshError

STATUSES = ("FINISHED", "FAILED", "KILLED")


class TrackingError(CrossmeshError):
    """A tracker cannot be reached or refuses; the message names the address and what to do."""


@dataclass(frozen=True)
class NewRun:
    """A run to be made."""

    name: str
    """Shown to people, e.g. `torch`."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """What it is (`tracked_run.py` names them): its kind, its identity, the run above it."""
    params: Mapping[str, str] = field(default_factory=dict)
    """Settings by dotted key. They never change."""


@dataclass(frozen=True)
class UsedDataset:
    """Data that a run read."""

    name: str
    digest: str
    source: str
    context: str
    """What for: `training`, `evaluation`, ..."""
    profile: Mapping[str, Any] = field(default_factory=dict)
    """Counts, e.g. rows and tokens."""


@dataclass(frozen=True)
class ModelVersion:
    """A version of a registered model."""

    artifact: str
    """Artifact folder of the run that made it."""
    name: str
    """Of the registered model."""
    tags: Mapping[str, str]
    alias: str = ""


class RunLog(ABC):
    """Keeps what runs say. Each call names its run by the id that `create_run` gave.

    A package adds one as an entry point of the group `crossmesh.trackers`: a callable of the `TrackingSpec`, the `StorageSpec` and a
    function that shows a person a line. Errors that a user can mend are `TrackingError`.
    """

    @abstractmethod
    def create_run(self, run: NewRun) -> str:
        """Start a run and return its id."""

    @abstractmethod
    def resume_run(self, run_id: str) -> float | None:
        """Continue a run and return when it was started, in seconds since 1970; None when it does not exist (any more)."""

    @abstractmethod
    def log_metrics(self, run_id: str, values: Mapping[str, float], step: int, milliseconds: int) -> None:
        """Keep `values` of `step` as of a time since 1970. After a resume some come again: the first value of a step counts."""

    @abstractmethod
    def log_tags(self, run_id: str, values: Mapping[str, str]) -> None:
        """Set tags."""

    @abstractmethod
    def log_artifact(self, run_id: str, source: Path, folder: str) -> None:
        """Keep a file, or all files of a folder, as they are now, under `folder` of the run's artifacts."""

    @abstractmethod
    def end_run(self, run_id: str, status: str | None) -> None:
        """End a run with one of `STATUSES` and see to it that all of it is kept; None lets go of a run that another job continues."""

    def log_text(self, run_id: str, path: str, text: str) -> None:
        """Keep `text` as the artifact `path`."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / PurePosixPath(path).name
            file.write_text(text, encoding="utf-8")
            self.log_artifact(run_id, file, str(PurePosixPath(path).parent))

    def log_dataset(self, run_id: str, dataset: UsedDataset) -> None:
        """Say which data a run read; by default as an artifact."""
        self.log_text(run_id, f"datasets/{dataset.context}.json", json.dumps(asdict(dataset), indent=2))

    def register_model(self, run_id: str, version: ModelVersion) -> None:
        """Make an artifact folder of a run a version of a registered model; by default an artifact says so."""
        self.log_text(run_id, "model_version.json", json.dumps(asdict(version), indent=2))
