"""`python torch_ranks.py JOB.json RANK`: one rank of a torch process group that trains the same spec on several meshes.

For each mesh it writes losses and gradient norms of every step, and rank 0 the adapter; a mesh may name a folder to save its state to
after some steps, or to continue from. Run beside `test_torch_ranks.py`, which holds the results against one process.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from crossmesh.hardware.mesh import MeshShape
from crossmesh.spec.experiment import ExperimentSpec, LoraSpec, ModelSpec, OptimSpec
from crossmesh.train.backend import TrainingSetup
from crossmesh.train.torch_backend import TorchBackend
from random_rows import rows, unpacked

ROWS, LENGTH = 4, 48


def run(case: dict[str, Any], target: Path) -> None:
    """Train one case and write what came of it."""
    mesh = MeshShape(**case["mesh"])
    spec = ExperimentSpec(
        model=ModelSpec(dtype="float32"),
        lora=LoraSpec(rank=case.get("rank", 3), alpha=8.0, dropout=case.get("dropout", 0.0)),
        optim=OptimSpec(steps=20, learning_rate=case.get("learning_rate", 1e-3), weight_decay=0.01, clip_norm=0.5),
        serve=replace(ExperimentSpec().serve, max_lora_rank=64),
    )
    folder = Path(case["folder"])
    setup = replace(TrainingSetup.of(spec, folder, folder), mesh=mesh, remat=case.get("remat", "none"))
    backend = TorchBackend()
    backend.init(setup)
    first = 0
    if "load" in case:
        backend.load_state(Path(case["load"]))
        first = case["from"]
    metrics = []
    for step in range(first, case["steps"]):
        batch = unpacked(rows(ROWS, step), case.get("micro", 1) * mesh.batch_ways, LENGTH)
        done = backend.step(batch)
        metrics.append([done.loss, done.grad_norm])
        if step + 1 == case.get("save_after"):
            saving = backend.save_state(Path(case["save"]))
            metrics[-1].append(backend.evaluate(batch).loss)
            saving()
    agreed = [backend.agree(backend.rank == mesh.devices - 1), backend.agree(False)]
    arrays = backend.export()
    if backend.rank == 0:
        np.savez(target / f"{case['name']}.npz", **arrays)
    (target / f"{case['name']}.{backend.rank}.json").write_text(json.dumps({"metrics": metrics, "agreed": agreed}))


def main(job: Path, rank: int) -> None:
    """Join the group of the job and run its cases."""
    told = json.loads(job.read_text())
    torch.set_num_threads(1)
    if told["world"] > 1:
        dist.init_process_group("gloo", init_method=f"file://{job.parent}/group", rank=rank, world_size=told["world"])
    for case in told["cases"]:
        run(case, job.parent)
    if told["world"] > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
