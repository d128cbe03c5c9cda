"""An objective that another package adds: z-loss (arXiv 2204.02311), which keeps the softmax's denominator near one."""

import sys
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from crossmesh.config.objective import OBJECTIVES

MODULE = """
from dataclasses import dataclass

from crossmesh.objectives.objective import TokenObjective


@dataclass(frozen=True)
class ZLoss(TokenObjective):
    coefficient: float = 0.1
    metrics = ("nll",)

    def token_losses(self, nll, normalizer):
        return {"loss": nll + self.coefficient * normalizer * normalizer, "nll": nll}
"""


def write_package(folder: Path) -> Path:
    """Write the package with its metadata into `folder`, to be put on the path."""
    metadata = folder / "z_loss-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "z_loss.py").write_text(MODULE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: z-loss\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[crossmesh.objectives]\nz_loss = z_loss:ZLoss\n")
    return folder


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install it in this process until the test ends."""
    monkeypatch.syspath_prepend(str(write_package(folder)))
    monkeypatch.delitem(sys.modules, "z_loss", raising=False)
    assert next(Distribution.discover(name="z-loss")).version == "1.0"
    monkeypatch.delitem(OBJECTIVES.__dict__, "_found", raising=False)  # Looked up once a process.
    monkeypatch.setitem(OBJECTIVES.__dict__, "_found", OBJECTIVES._found)
    monkeypatch.delitem(OBJECTIVES.__dict__, "_found")
