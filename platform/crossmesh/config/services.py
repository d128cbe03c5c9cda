"""Where an experiment is tracked and where what it makes is kept."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossmesh.errors import require
from crossmesh.plugins import Registry

HOOKS = Registry[Any]("crossmesh.hooks", "hook", {})
"""Makers of a `crossmesh.trial.hooks.Hook`, by the names that `hooks=[...]` gives; all are of installed packages."""


@dataclass(frozen=True)
class TrackingSpec:
    """Where runs are tracked."""

    uri: str = ""
    """MLflow tracking URI; empty: sqlite and artifacts under `storage.root`."""
    experiment: str = "crossmesh"
    system_metrics: bool = True
    trackers: tuple[str, ...] = ("mlflow",)
    """What keeps the runs: `mlflow`, `none` (nothing is kept), or one of an installed package. All of them
    log the same, and the first is read."""

    def __post_init__(self) -> None:
        """Check the experiment's name and the trackers."""
        object.__setattr__(self, "trackers", tuple(self.trackers))
        sound = bool(self.trackers) and len(set(self.trackers)) == len(self.trackers)
        require(sound, "tracking.trackers", list(self.trackers), "one name or more, each once")
        require(bool(self.experiment.strip()), "tracking.experiment", self.experiment, "a name")


def _default_root() -> str:
    return os.environ.get("CROSSMESH_STORAGE") or str(Path.home() / ".crossmesh")


@dataclass(frozen=True)
class StorageSpec:
    """Where runs, adapters, checkpoints and caches live."""

    root: str = field(default_factory=_default_root)
    """Absolute folder, the same wherever the job was started from: `$CROSSMESH_STORAGE`, else `~/.crossmesh`."""

    def __post_init__(self) -> None:
        """Check the folder."""
        require(Path(self.root).is_absolute(), "storage.root", self.root, "an absolute path")

    @property
    def path(self) -> Path:
        """`root` as a path."""
        return Path(self.root)


def tracked_in_storage(tracking: TrackingSpec, storage: StorageSpec) -> bool:
    """Whether MLflow's sqlite file lies under `storage.root`."""
    return "mlflow" in tracking.trackers and (not tracking.uri or tracking.uri.startswith(f"sqlite:///{storage.root.rstrip('/')}/"))
