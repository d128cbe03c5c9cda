"""Where an adapter comes from: a folder, a trial or run of this storage, or the Hugging Face hub."""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from crossmesh.adapters.peft_config import CONFIG_FILE
from crossmesh.config.services import StorageSpec
from crossmesh.errors import InputError, reading
from crossmesh.files import read_json
from crossmesh.models.weights.downloads import download_hub
from crossmesh.track.run_log import TrackingError
from crossmesh.track.tracked_run import TAG_KIND
from crossmesh.track.tracker import Tracker

ALLOWED = "a PEFT adapter folder, hf://owner/name[@revision], the id of an MLflow run, or the identity of a trial"
_RUN = re.compile(r"[0-9a-f]{32}")
_IDENTITY = re.compile(r"[0-9a-f]{16}([0-9a-f]{48})?")


@dataclass(frozen=True)
class FoundAdapter:
    """An adapter on this machine."""

    folder: Path
    run_id: str
    """Id of the run that trained it; empty when it is not known."""


def find_adapter(adapter: str, storage: StorageSpec, open_tracker: Callable[[], Tracker], key: str = "adapter") -> FoundAdapter:
    """Return the local folder of `adapter`, which `key` gave; `open_tracker` is called for a run only.

    An adapter of the hub stays in huggingface_hub's cache; one of a run is copied to the cache under `storage.root`. Raises
    `InputError` when there is none.
    """
    if not adapter:
        raise InputError(f"{key} is not given. Allowed: {ALLOWED}.")
    if adapter.startswith("hf://"):
        return FoundAdapter(download_hub(adapter.removeprefix("hf://"), key), "")
    folder = Path(adapter).expanduser().absolute()
    if folder.is_dir():
        return FoundAdapter(folder, "")
    if _IDENTITY.fullmatch(adapter):
        trial = storage.path / "trials" / adapter[:16]
        if (trial / "adapter").is_dir():
            with reading(trial / "run.json", "the trial's record of its MLflow run"):
                return FoundAdapter(trial / "adapter", str(read_json(trial / "run.json")["run_id"]))
        raise InputError(f"{key}={adapter!r}: {trial / 'adapter'} does not exist. Finish the trial first: run its job again.")
    if _RUN.fullmatch(adapter):
        return FoundAdapter(_of_run(key, adapter, storage.path / "cache" / "adapters" / adapter, open_tracker()), adapter)
    raise InputError(f"{key}={adapter!r} does not exist on this machine. Allowed: {ALLOWED}.")


def _of_run(key: str, run_id: str, kept: Path, tracker: Tracker) -> Path:
    """Fetch the adapter of a training run; what the run has counts, not what an earlier fetch left."""
    tracker.require_kept(key, run_id)
    if not tracker.has_run(run_id):
        raise InputError(f"{key}={run_id!r}: {tracker.uri} has no run of this id. Look for it with: {tracker.ui_command}")
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    try:
        folder = tracker.download(run_id, "adapter", kept)
    except TrackingError:
        run = tracker.run(run_id)
        if run.status == "FINISHED" and run.tags.get(TAG_KIND) == "train":  # It may be the tracker that is away.
            raise
        folder = kept
    if not (folder / CONFIG_FILE).is_file():
        raise InputError(
            f"{key}={run_id!r}: the run has no adapter. Give a FINISHED run of kind train that trained one (lora.rank above 0)."
        )
    return folder
