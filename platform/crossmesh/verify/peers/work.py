"""The packed work that contenders of `train_overhead` share: one sequence a step, filled as `packing=stream` fills it."""

from pathlib import Path

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.serving import ServeSpec
from crossmesh.config.training import BackendSpec, BatchSpec, DataSpec, LoraSpec, OptimSpec, PackingSpec
from crossmesh.data.batches import PackedBatch
from crossmesh.data.packing import build_batch, plan_steps
from crossmesh.models.families.registry import read_architecture
from crossmesh.train.backend import Backend, TrainingSetup
from crossmesh.train.worker import make_backend
from crossmesh.verify.rows import paper_lengths, random_rows

RATE, DECAY = 1e-4, 1e-3
_ROWS = 1000


def packed_work(backend: str, folder: Path, limit: int, steps: int, rank: int = 16) -> tuple[ExperimentSpec, list[PackedBatch]]:
    """The spec and its batches, [1, 1, limit] each; the learning rate stays as it is."""
    spec = ExperimentSpec(
        data=DataSpec(max_length=limit),
        batch=BatchSpec(size=1),
        packing=PackingSpec("stream"),
        lora=LoraSpec(rank=rank),
        serve=ServeSpec(max_lora_rank=rank),
        optim=OptimSpec(steps=steps, learning_rate=RATE, final_fraction=1.0, warmup_steps=0, weight_decay=DECAY),
        backend=BackendSpec(backend),
    )
    lengths = paper_lengths(_ROWS, limit)
    rows = random_rows(lengths, read_architecture(folder).vocab)
    return spec, [build_batch(plan, rows, 1, limit, 0) for plan in plan_steps(lengths, spec)]


def ready_backend(spec: ExperimentSpec, folder: Path, cache: Path) -> Backend:
    """The backend of `spec`, initialised."""
    backend = make_backend(spec)
    backend.init(TrainingSetup.of(spec, folder, cache / "compiled"))
    return backend
