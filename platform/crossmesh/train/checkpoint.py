"""Checkpoints that prove themselves: one folder a step, a digest of every file, the newest sound one found without anybody's index.

A checkpoint appears whole or not at all, and one that is damaged later is recognised, reported, set aside and passed over. What the
state files hold is the backend's; where checkpoints lie is `checkpoint_places.py`'s; when one is written is `saver.py`'s. Ray Train's own
checkpoint bookkeeping is not used, because it loses or loops on damaged ones.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossmesh.errors import InputError
from crossmesh.files import canonical_json, digest_file, digest_text, read_json, write_json, write_text
from crossmesh.train.checkpoint_places import MANIFEST, LocalPlace, Place, RemotePlace
from crossmesh.train.events import StepEvent

_STATE = "state"


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
    """The checkpoints of one run.

    Every process of a run has one; all of them use `staging` and `announced`, and the leading one alone the rest.
    """

    def __init__(self, folder: Path, identity: str, keep: int, *, attempt: str = "attempt", target: str = "") -> None:
        """Open the checkpoints of a run; nothing is written.

        Args:
            folder: local, shared by all processes; states are collected here, and kept here when there is no `target`.
            identity: says which run the state belongs to.
            keep: how many checkpoints stay.
            attempt: a name that the processes of one start have in common and no other start has.
            target: fsspec URL of the run's own folder.
        """
        self._folder = folder
        self._identity = identity
        self._keep = keep
        self._attempt = attempt
        self._place: Place = RemotePlace(target) if target else LocalPlace(folder)

    def staging(self, step: int) -> Path:
        """The folder, made by whoever comes first, in which all processes leave their files of the state after `step`."""
        state = self._staged(step) / _STATE
        state.mkdir(parents=True, exist_ok=True)
        return state

    def commit(self, history: tuple[StepEvent, ...]) -> str:
        """Make a checkpoint of what was staged after the last step of `history`, drop what is older than the newest `keep`.

        Returns its address. What was staged is gone afterwards, also when this fails.
        """
        step = history[-1].step
        staged = self._staged(step)
        try:
            contents = {
                "step": step,
                "identity": self._identity,
                "history": [event.record for event in history],
                "sha256": {
                    str(file.relative_to(staged)): digest_file(file) for file in sorted((staged / _STATE).rglob("*")) if file.is_file()
                },
            }
            write_json(staged / MANIFEST, {"contents": contents, "sha256": digest_text(canonical_json(contents))})
            address = self._place.put(staged, step)
        finally:
            self.unstage(step)
        for old in self._place.steps()[: -self._keep]:
            self._place.discard(old)
        return address

    def begin_with(self, address: str, step: int) -> None:
        """Take in the checkpoint after `step` of another run, kept in the folder or at the URL `address`, unless this run has one.

        Raises `InputError` when it is not there any more, or damaged.
        """
        if self._place.steps():
            return
        place: Place = RemotePlace(address) if "://" in address else LocalPlace(Path(address))
        try:
            if step not in place.steps():
                raise _DamagedError("it is not there")
            found = self._read(place.get(step, self._folder / f".fetched-{step:08d}-{self._attempt}"), own=False)
        except _DamagedError as error:
            raise InputError(
                f"checkpoint.resume_from: the checkpoint after step {step} in {address} cannot be used: {error}. Train that run again "
                "with force=true, or begin with another one."
            ) from error
        shutil.copytree(found.state, self.staging(step), dirs_exist_ok=True)
        self.commit(found.history)
        self.tidy()

    def unstage(self, step: int) -> None:
        """Remove what was staged after `step`."""
        shutil.rmtree(self._staged(step), ignore_errors=True)

    def newest(self, on_damage: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest sound checkpoint and announce it to the other processes.

        Each damaged one is reported and set aside, so that its step can be stored again. Raises `InputError` when a checkpoint is of
        another run.
        """
        self.tidy()
        found = self._newest(on_damage)
        write_text(self._announcement, str(found.state.parent) if found else "")
        return found

    def announced(self) -> Checkpoint | None:
        """What `newest` found in the leading process."""
        folder = self._announcement.read_text(encoding="utf-8")
        return self._read(Path(folder), check=False) if folder else None

    def tidy(self) -> None:
        """Remove what earlier attempts left half done, and what `newest` has downloaded."""
        if self._folder.is_dir():
            for entry in self._folder.iterdir():
                if entry.is_dir() and entry.name.startswith("."):
                    shutil.rmtree(entry, ignore_errors=True)
                elif entry.name.startswith("."):
                    entry.unlink()

    def clear(self) -> None:
        """Remove all checkpoints."""
        for step in self._place.steps():
            self._place.discard(step)

    def _staged(self, step: int) -> Path:
        return self._folder / f".saving-{step:08d}-{self._attempt}"

    @property
    def _announcement(self) -> Path:
        return self._folder / f".found-{self._attempt}"

    def _newest(self, on_damage: Callable[[str], None]) -> Checkpoint | None:
        for step in reversed(self._place.steps()):
            folder = self._place.get(step, self._folder / f".fetched-{step:08d}-{self._attempt}")
            try:
                return self._read(folder)
            except _DamagedError as error:
                aside = self._place.set_aside(step)
                on_damage(f"The checkpoint after step {step} is damaged ({error}); the one before it is used. It is kept as {aside}.")
        return None

    def _read(self, folder: Path, *, check: bool = True, own: bool = True) -> Checkpoint:
        try:
            manifest: dict[str, Any] = read_json(folder / MANIFEST)
            contents = manifest["contents"]
            if digest_text(canonical_json(contents)) != manifest["sha256"]:
                raise _DamagedError(f"{MANIFEST} has changed")
            for name, digest in contents["sha256"].items() if check else ():
                if digest_file(folder / name) != digest:
                    raise _DamagedError(f"{name} has changed")
            history = tuple(StepEvent(**event) for event in contents["history"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _DamagedError(f"{type(error).__name__}: {error}") from error
        if own and contents["identity"] != self._identity:
            raise InputError(
                f"{folder} is a checkpoint of another trial: model, data or settings differ from this spec's. "
                "Train in another folder, or run the job with force=true to start anew."
            )
        return Checkpoint(contents["step"], folder / _STATE, history)
