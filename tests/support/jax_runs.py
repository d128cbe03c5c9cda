"""JAX training runs for tests; as a script, one process of a run: `python jax_runs.py FOLDER CACHE OUT [RANK RANKS ADDRESS]`.

A script says as JSON what its steps lost and how many programs it compiled or found compiled.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import BackendSpec, LoraSpec, ModelSpec, OptimSpec
from crossmesh.data.batches import PackedBatch
from crossmesh.hardware.mesh import MeshShape
from crossmesh.train.backend import StepMetrics, TrainingSetup
from crossmesh.train.jax_backend import JaxBackend
from random_rows import rows, unpacked

LENGTH = 48
ROWS = 8
ONE = MeshShape(1, 1, 1)


def setup_of(folder: Path, cache: Path, mesh: MeshShape = ONE, micro: int = ROWS, **groups: Any) -> TrainingSetup:
    """A run of 8 rows a step in micro-batches of `micro` over the whole mesh; `groups` replace what the spec has."""
    spec = ExperimentSpec(
        **{
            "lora": LoraSpec(rank=4, alpha=8.0),
            "optim": OptimSpec(steps=21, learning_rate=5e-3, warmup_steps=2, weight_decay=0.01),
            "backend": BackendSpec("jax"),
            "model": ModelSpec(),
            **groups,
        }
    )
    return replace(TrainingSetup.of(spec, folder, cache), mesh=mesh, accumulation=ROWS // micro)


def started(setup: TrainingSetup) -> JaxBackend:
    backend = JaxBackend()
    backend.init(setup)
    return backend


def batch_of(seed: int, micro: int = ROWS) -> PackedBatch:
    return unpacked(rows(ROWS, seed), micro, LENGTH)


def steps(backend: JaxBackend, seeds: range, micro: int = ROWS) -> list[StepMetrics]:
    return [backend.step(batch_of(seed, micro)) for seed in seeds]


def main(folder: Path, cache: Path, out: Path, rank: int = 0, ranks: int = 1, address: str = "") -> None:
    counts: dict[str, int] = {}
    jax.monitoring.register_event_listener(lambda event, **_: counts.update({event: counts.get(event, 0) + 1}))
    mesh, micro = ONE, ROWS
    jax.config.update("jax_num_cpu_devices", 8)
    if ranks > 1:
        jax.config.update("jax_num_cpu_devices", 4 // ranks)
        jax.distributed.initialize(address, ranks, rank)
        mesh, micro = MeshShape(1, 2, 1, dcn=2), 4
    # Not the hyperparameters of the other runs.
    backend = started(
        setup_of(
            folder,
            cache,
            mesh,
            micro,
            optim=OptimSpec(steps=30, learning_rate=1e-3, warmup_steps=3, weight_decay=0.1),
            lora=LoraSpec(rank=4, alpha=8.0, seed=5),
        )
    )
    losses = [one.loss for one in steps(backend, range(2), micro)]
    out.mkdir(parents=True, exist_ok=True)
    saving = backend.save_state(out)
    backend.step(batch_of(2, micro))
    saving()
    backend.load_state(out)
    losses.append(backend.step(batch_of(2, micro)).loss)
    agreed = [backend.agree(rank == 1), backend.agree(False)]
    prefix = "/jax/compilation_cache/cache_"
    compiled = {name: counts.get(f"{prefix}{name}", 0) for name in ("misses", "hits")}
    size = sum(array.size for array in backend.export().values())
    sys.stdout.write(json.dumps({"rank": backend.rank, "losses": losses, "agreed": agreed, "size": size, **compiled}) + "\n")


if __name__ == "__main__":
    folder, cache, out, *ranks = sys.argv[1:]
    main(Path(folder), Path(cache), Path(out), *([int(ranks[0]), int(ranks[1]), ranks[2]] if ranks else []))
