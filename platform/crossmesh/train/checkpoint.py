"""Checkpoints that prove themselves: one folder a step, a digest of every file, the newest sound one found without anybody's index.

A checkpoint appears whole or not at all, and one that is damaged later is recognised, reported, set aside and passed over. What the
state files hold is the backend's; Ray Train's own checkpoint bookkeeping is not used, because it loses or loops on damaged ones.
"""

import re
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crossmesh.errors import InputError
from crossmesh.files import canonical_json, digest_file, digest_text, new_folder, read_json, write_json
from crossmesh.train.backend import Saving
from crossmesh.train.events import StepEvent

_MANIFEST = "manifest.json"
_STATE = "state"
_NAME = re.compile(r"step-(\d{8})")


@dataclass(frozen=True)
class Checkpoint:
    """A sound checkpoint."""

    step: int
    """Steps done, which is also the position in the data: the rows of a step follow from its number."""
    state: Path
    """Folder that the backend wrote."""
    history: tuple[StepEvent, ...]
    """All steps so far, from the first."""


class _DamagedError(Exception):
    """A checkpoint is not what its manifest says."""


class CheckpointStore:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: Path, identity: str, keep: int) -> None:
        """`identity` says which run the state belongs to; `keep` is how many checkpoints stay."""
        self._folder = folder
        self._identity = identity
        self._keep = keep

    def save(self, history: tuple[StepEvent, ...], write_state: Callable[[Path], Saving]) -> Path:
        """Store the state after the last step of `history`, then drop what is older than the newest `keep`. Returns the folder."""
        step = history[-1].step
        path = self._folder / f"step-{step:08d}"
        with new_folder(path) as temporary:
            state = temporary / _STATE
            state.mkdir()
            write_state(state)()
            contents = {
                "step": step,
                "identity": self._identity,
                "history": [asdict(event) for event in history],
                "sha256": {str(file.relative_to(temporary)): digest_file(file) for file in sorted(state.rglob("*")) if file.is_file()},
            }
            write_json(temporary / _MANIFEST, {"contents": contents, "sha256": digest_text(canonical_json(contents))})
        for _, old in self._found()[: -self._keep]:
            _discard(old)
        return path

    def newest(self, on_damage: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest sound checkpoint; each damaged one is reported and set aside, so that its step can be stored again.

        Raises `InputError` when a checkpoint is of another run.
        """
        for step, folder in reversed(self._found()):
            try:
                return self._read(folder)
            except _DamagedError as error:
                aside = folder.with_name(f"damaged-{step:08d}-{uuid.uuid4().hex[:8]}")
                folder.rename(aside)
                on_damage(f"The checkpoint after step {step} is damaged ({error}); the one before it is used. It is kept as {aside}.")
        return None

    def _found(self) -> list[tuple[int, Path]]:
        """Steps and folders, oldest first."""
        if not self._folder.is_dir():
            return []
        return sorted((int(match[1]), entry) for entry in self._folder.iterdir() if (match := _NAME.fullmatch(entry.name)))

    def _read(self, folder: Path) -> Checkpoint:
        try:
            manifest: dict[str, Any] = read_json(folder / _MANIFEST)
            contents = manifest["contents"]
            if digest_text(canonical_json(contents)) != manifest["sha256"]:
                raise _DamagedError(f"{_MANIFEST} has changed")
            for name, digest in contents["sha256"].items():
                if digest_file(folder / name) != digest:
                    raise _DamagedError(f"{name} has changed")
            history = tuple(StepEvent(**event) for event in contents["history"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _DamagedError(f"{type(error).__name__}: {error}") from error
        if contents["identity"] != self._identity:
            raise InputError(
                f"{folder} is a checkpoint of another trial: model, data or settings differ from this spec's. "
                "Train in another folder, or run the job with force=true to start anew."
            )
        return Checkpoint(contents["step"], folder / _STATE, history)


def _discard(folder: Path) -> None:
    """Take `folder` away: out of sight at once, then file by file."""
    aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)
