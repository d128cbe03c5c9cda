"""A hook that another package adds: what it is called with, as lines of JSON in a file that an environment variable names."""

import sys
from pathlib import Path

import pytest

from crossmesh.config.services import HOOKS

MODULE = """
import json
import os

from crossmesh.trial.hooks import Hook


class Lines(Hook):
    def _write(self, **values):
        with open(os.environ["HOOK_LINES"], "a") as file:
            file.write(json.dumps(values) + "\\n")

    def on_start(self, trial):
        self._write(started=trial.spec.name, run=trial.run_id)

    def on_step(self, event):
        self._write(step=event.step, loss=event.loss)

    def on_checkpoint(self, event):
        self._write(checkpoint=event.step)

    def on_end(self, result):
        self._write(ended=None if result is None else result.final_loss)
"""


def write_package(folder: Path) -> Path:
    """Write the package with its metadata into `folder`, to be put on the path."""
    metadata = folder / "hook_lines-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "hook_lines.py").write_text(MODULE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: hook-lines\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[crossmesh.hooks]\nlines = hook_lines:Lines\n")
    return folder


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install it in this process until the test ends."""
    monkeypatch.syspath_prepend(str(write_package(folder)))
    monkeypatch.delitem(sys.modules, "hook_lines", raising=False)
    monkeypatch.delitem(HOOKS.__dict__, "_found", raising=False)  # Looked up once a process.
    monkeypatch.setitem(HOOKS.__dict__, "_found", HOOKS._found)
    monkeypatch.delitem(HOOKS.__dict__, "_found")
