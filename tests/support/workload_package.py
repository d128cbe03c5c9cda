"""The workload of `docs/extending.md`, as a package that is installed while a test runs."""

import sys
from pathlib import Path

import pytest

from crossmesh.config.bench import WORKLOADS

DOCS = Path(__file__).resolve().parents[2] / "docs" / "extending.md"


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install it in this process until the test ends."""
    code = DOCS.read_text(encoding="utf-8").partition("## A workload")[2].partition("```python\n")[2].partition("```")[0]
    metadata = folder / "waves-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "waves_workload.py").write_text(code)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: waves\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[crossmesh.workloads]\nwaves = waves_workload:Waves\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "waves_workload", raising=False)
    monkeypatch.delitem(WORKLOADS.__dict__, "_found", raising=False)  # Looked up once a process.
    monkeypatch.setitem(WORKLOADS.__dict__, "_found", WORKLOADS._found)
    monkeypatch.delitem(WORKLOADS.__dict__, "_found")
