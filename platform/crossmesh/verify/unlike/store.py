"""Runs of a real MLflow store that were edited after they were made: `crossmesh compare` refuses them by name, or compares them with none.

Each edit is undone.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossmesh.config.fingerprint import TRAINED_RECORD, digest_of, identity_of_digests
from crossmesh.console import Console
from crossmesh.environments import python_path
from crossmesh.errors import InputError
from crossmesh.report.gate.comparable import compare_variants
from crossmesh.report.stored import stored_variants
from crossmesh.track.tracked_run import TAG_IDENTITY, TAG_SCIENCE, TAG_SYSTEM, TAG_TRAINED
from crossmesh.track.tracker import Tracker
from crossmesh.verify.unlike.case import Case, scopes

REFUSED = "refused"
_SCIENCE, _SYSTEM, _BESIDE = "records/science.json", "records/system.json", f"adapter/{TRAINED_RECORD}"
_OTHER_RATE = 1e-4


@dataclass
class Edited:
    """One run of a store on this machine, whose tags and files are changed and put back."""

    tracker: Tracker
    storage: Path
    run_id: str
    _tags: dict[str, str] = field(default_factory=dict)
    _files: dict[Path, bytes] = field(default_factory=dict)

    def tag(self, key: str, value: str) -> None:
        """Give a tag another value."""
        self._tags.setdefault(key, self.tracker.run(self.run_id).tags[key])
        self.tracker.tags(self.run_id, {key: value})

    def untag(self, key: str) -> None:
        """Delete a tag."""
        from mlflow import MlflowClient

        self._tags.setdefault(key, self.tracker.run(self.run_id).tags[key])
        MlflowClient(self.tracker.uri).delete_tag(self.run_id, key)

    def file(self, path: str) -> Path:
        """An artifact where it lies; what it holds now is put back later."""
        found = next(iter(self.storage.rglob(f"{self.run_id}/artifacts/{path}")))
        self._files.setdefault(found, found.read_bytes())
        return found

    def json(self, path: str, change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Change a JSON artifact and return it."""
        file = self.file(path)
        value: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        change(value)
        file.write_text(json.dumps(value), encoding="utf-8")
        return value

    def undo(self) -> None:
        """Put everything back."""
        self.tracker.tags(self.run_id, self._tags)
        for file, contents in self._files.items():
            file.write_bytes(contents)
        self._tags.clear()
        self._files.clear()


def _rate(science: dict[str, Any]) -> None:
    science["optimizer"]["learning_rate"] = _OTHER_RATE


def _edit_tag(run: Edited) -> None:
    run.tag(TAG_SCIENCE, digest_of({"science": "another"}))


def _edit_science(run: Edited) -> None:
    run.json(_SCIENCE, _rate)


def _edit_system(run: Edited) -> None:
    run.json(_SYSTEM, lambda system: system.update(remat="layer"))


def _edit_all_but_parameters(run: Edited) -> None:
    """Contents, both tags and the record beside the adapter agree; the run's parameters cannot be changed."""
    science = digest_of(run.json(_SCIENCE, _rate))
    run.json(_BESIDE, lambda beside: beside.update(science=science))
    run.tag(TAG_SCIENCE, science)
    run.tag(TAG_IDENTITY, identity_of_digests(science, run.tracker.run(run.run_id).tags[TAG_SYSTEM]))


def _edit_beside(run: Edited) -> None:
    run.json(_BESIDE, lambda beside: beside.update(science=digest_of({"science": "another"})))


def _delete_beside(run: Edited) -> None:
    run.file(_BESIDE).unlink()


def _strip(run: Edited) -> None:
    """What a run looks like that never had a record beside its weights."""
    _delete_beside(run)
    run.untag(TAG_TRAINED)


EDITS: Sequence[tuple[str, Callable[[Edited], None]]] = (
    ("MLflow's tag crossmesh.science edited", _edit_tag),
    (f"{_SCIENCE} edited: another learning rate", _edit_science),
    (f"{_SYSTEM} edited", _edit_system),
    (f"{_SCIENCE}, tags and the adapter's own record edited together", _edit_all_but_parameters),
    (f"{_BESIDE} edited", _edit_beside),
    (f"{_BESIDE} deleted", _delete_beside),
)


def edited_cases(tracker: Tracker, storage: Path, runs: Sequence[str], console: Console) -> list[Case]:
    """Rows of all edits of the first of `runs`, which may be compared as they are."""
    with console.stage("edited runs") as stage:
        untouched = _job("compare", storage, f"runs=[{','.join(runs)}]", f"folder={storage.parent / 'reports'}")
        if untouched.returncode:
            raise InputError(f"runs as they were made are not compared: {untouched.stderr.strip()}")
        cases = []
        for number, (changed, edit) in enumerate(EDITS):
            stage.progress("edits", number, len(EDITS))
            run = Edited(tracker, storage, runs[0])
            edit(run)
            try:
                done = _job("compare", storage, f"runs=[{','.join(runs)}]", f"folder={storage.parent / 'reports'}")
            finally:
                run.undo()
            cases.append(_refused(changed, done, runs[0]))
        run = Edited(tracker, storage, runs[0])
        _strip(run)
        try:
            variants = stored_variants(tracker, [tracker.run(one) for one in runs])
        finally:
            run.undo()
        shown = {one.scope for one in compare_variants(variants).blocking}
        cases.append(Case(f"{_BESIDE} and its tag deleted", "science", scopes(shown)))
    return cases


def port_case(storage: Path, port: int) -> Case:
    """The row of a second server on a port on which somebody listens, even one that would share it."""
    done = _job("serve", storage, f"serve.port={port}", "model=tiny_llama")
    return _refused("two servers on one port: serve", done, f"serve.port={port}: the port of 127.0.0.1 is taken by")


def _refused(changed: str, done: "subprocess.CompletedProcess[str]", named: str) -> Case:
    output = " ".join(done.stderr.split())
    refused = done.returncode == InputError.exit_code and named in output
    return Case(changed, REFUSED, REFUSED if refused else f"exit code {done.returncode}", {"said": output[-300:]})


def _job(verb: str, storage: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "crossmesh", verb, f"storage.root={storage}", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "PYTHONPATH": python_path()}
    )
