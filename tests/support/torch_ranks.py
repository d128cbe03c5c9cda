"""Trains one spec on several meshes, each case in turn: `python torch_ranks.py JOB.json RANK` is one rank of a torch process group.

Every rank writes losses and gradient norms of the steps it took, and rank 0 the trained arrays. A case may save its state after some steps,
or continue from saved state.
"""

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import LoraSpec, ModelSpec, OptimSpec
from crossmesh.hardware.mesh import MeshShape
from crossmesh.train.backend import TrainingSetup
from crossmesh.train.torch_backend import TorchBackend
from random_rows import rows, unpacked

ROWS, LENGTH = 4, 48


@dataclass(frozen=True)
class Case:
    """One training run."""

    name: str
    folder: str
    """Of the model."""
    mesh: dict[str, int] = field(default_factory=dict)
    """Sizes of axes that are not 1."""
    steps: int = 20
    dtype: str = "float32"
    micro: int = 1
    """Sequences of a rank at once; 4 rows make a step."""
    rank: int = 3
    dropout: float = 0.0
    learning_rate: float = 1e-3
    remat: str = "none"
    save_after: int = 0
    load: str = ""
    """Case whose state this one continues from."""

    @property
    def shape(self) -> MeshShape:
        """The whole mesh."""
        return MeshShape(**{"data": 1, "fsdp": 1, "tp": 1, **self.mesh})

    @property
    def setup(self) -> TrainingSetup:
        """What the backend is told."""
        optim = OptimSpec(steps=20, learning_rate=self.learning_rate, weight_decay=0.01, clip_norm=0.5)
        spec = ExperimentSpec(
            model=ModelSpec(dtype=self.dtype), lora=LoraSpec(rank=self.rank, alpha=8.0, dropout=self.dropout), optim=optim
        )
        return replace(TrainingSetup.of(spec, Path(self.folder), Path(self.folder)), mesh=self.shape, remat=self.remat)


@dataclass(frozen=True)
class Result:
    """What a case came to, as one rank saw it."""

    losses: list[float]
    norms: list[float]
    agreed: list[bool]
    """Answers to a flag that only the last rank raises, and to one that nobody does."""


def run(case: Case, target: Path) -> None:
    """Train one case and write what came of it into `target`."""
    backend = TorchBackend()
    backend.init(case.setup)
    first = 0
    if case.load:
        backend.load_state(target / case.load)
        first = next(other.save_after for other in read_cases(target) if other.name == case.load)
    done = []
    for step in range(first, case.steps):
        batch = unpacked(rows(ROWS, step), case.micro * case.shape.dp_size, LENGTH)
        done.append(backend.step(batch))
        if step + 1 == case.save_after:
            (target / case.name).mkdir(exist_ok=True)
            saving = backend.save_state(target / case.name)
            backend.evaluate(batch)  # Training goes on while files are written.
            saving()
    agreed = [backend.agree(backend.rank == case.shape.devices - 1), backend.agree(False)]
    arrays = backend.export()
    if backend.rank == 0:
        np.savez(target / f"{case.name}.npz", **arrays)
    result = {"losses": [one.loss for one in done], "norms": [one.grad_norm for one in done], "agreed": agreed}
    (target / f"{case.name}.{backend.rank}.json").write_text(json.dumps(result))


def write_cases(folder: Path, cases: list[Case]) -> Path:
    """Write the job that `main` runs; cases of an earlier job in the same folder stay known."""
    known = {case.name: case for case in [*read_cases(folder), *cases]}
    (folder / "cases.json").write_text(json.dumps([vars(case) for case in known.values()]))
    job = folder / f"{cases[0].name}.job.json"
    job.write_text(json.dumps([case.name for case in cases]))
    return job


def read_cases(folder: Path) -> list[Case]:
    """All cases that were ever given to `folder`."""
    path = folder / "cases.json"
    return [Case(**case) for case in json.loads(path.read_text())] if path.is_file() else []


def read_result(folder: Path, name: str, rank: int = 0) -> tuple[Result, dict[str, np.ndarray]]:
    """What `run` wrote."""
    with np.load(folder / f"{name}.npz") as stored:
        return Result(**json.loads((folder / f"{name}.{rank}.json").read_text())), dict(stored)


def main(job: Path, rank: int) -> None:
    """Join the group of the job and run its cases."""
    torch.set_num_threads(1)
    cases = {case.name: case for case in read_cases(job.parent)}
    wanted = [cases[name] for name in json.loads(job.read_text())]
    world = wanted[0].shape.devices
    dist.init_process_group("gloo", init_method=f"file://{job}.group", rank=rank, world_size=world)
    for case in wanted:
        run(case, job.parent)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
