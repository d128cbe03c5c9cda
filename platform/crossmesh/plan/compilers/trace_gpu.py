"""Traces the very step of the torch backend on one rank, without a GPU, without weights and without other ranks.

The backend's own model, sharding and step run on fake tensors, which have a shape and no values, and in a process group that sends
nothing. What is counted: memory at its peak by kind, FLOP, and bytes that operations move. What is not: what kernels take for
themselves while they run, and what CUDA and NCCL keep. Rank 0 is traced: its parts of divided tensors are the largest.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.device_mesh import init_device_mesh

from crossmesh.adapters.initial import PEFT_PREFIX
from crossmesh.compat.tracing_torch import fake_process_group, fake_tensors
from crossmesh.config.training import LoraSpec, ModelSpec, OptimSpec
from crossmesh.data.batches import PackedBatch
from crossmesh.errors import InputError
from crossmesh.files import write_json
from crossmesh.hardware.mesh import AXES, MeshShape
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.torch.lora_masks_torch import mask_words
from crossmesh.plan.compilers.allocations import peak_by_kind
from crossmesh.plan.compilers.trace_gpu_recorder import Recorder
from crossmesh.plan.compilers.workers import answer_questions
from crossmesh.train.backend import TrainingSetup, loss_rows
from crossmesh.train.model_torch import allocate, assemble, trained_of
from crossmesh.train.ranks_torch import Ranks
from crossmesh.train.sharding_torch import local
from crossmesh.train.torch_backend import TorchBackend

_FUSED = {"flash": "sdpa", "flex": "sdpa"}
"""Kernels that a CPU lacks, and what is traced in their place: no scores are kept either way."""


def trace(question: Mapping[str, Any]) -> dict[str, Any]:
    """Answer what one step needs on one rank.

    `question` has `config` (the model's config.json), `dtype`, `quantization`, `lora` (`rank`, `targets`, `rank_pattern` and whether there
    is `dropout`; rank 0 trains all weights), `remat`, `attention`, `mesh` (sizes by axis), `micro` (sequences of a rank at once),
    `length` (tokens), `packed`, `accumulates` (a step has several micro-batches) and `clip`. Every token carries loss.

    The answer has `hbm_bytes` at the peak, `memory` (the same by kind), and `flops` and `bytes` of one micro-batch.

    Raises `InputError` for a base in 4 bits: bitsandbytes makes it on a GPU only.
    """
    if question["quantization"] != "none":
        raise InputError(
            f"model.quantization={question['quantization']} cannot be traced: bitsandbytes needs a GPU. Set plan.compile=never."
        )
    with tempfile.TemporaryDirectory() as folder:
        write_json(Path(folder) / "config.json", question["config"])
        return _traced(setup_of(question, Path(folder)), batch_of(question))


def _traced(setup: TrainingSetup, batch: PackedBatch) -> dict[str, Any]:
    architecture, backend, recorder = read_architecture(setup.model_folder), TorchBackend(), Recorder()
    with _fake_ranks(setup.mesh) as ranks:
        model, axes = assemble(setup, architecture, ranks)
        model.rows = loss_rows(on_cpu=False)
        if model.masks is not None:
            model.masks.block = mask_words(on_cpu=False)
        with fake_tensors(), recorder:
            held = allocate(model, axes, ranks)
            for name, one in held.items():
                recorder.name("adapter" if name.startswith(PEFT_PREFIX) else "weights", [local(one.parameter)])
            recorder.name("weights", model.buffers())
            backend.adopt(setup, architecture, ranks, model, trained_of(held))
            moments = {name: one.values for name, one in backend.state().items() if not name.startswith("weight/")}
            recorder.name("optimizer", moments.values())
            backend.step(batch)
    memory = peak_by_kind(recorder.changes, recorder.known)
    count = len(batch.tokens)
    return {
        "hbm_bytes": sum(memory.values()),
        "memory": memory,
        "flops": recorder.flops / count,
        "bytes": recorder.traffic / count,
    }


def setup_of(question: Mapping[str, Any], folder: Path) -> TrainingSetup:
    """What the backend is told, with the model in `folder`, of which only config.json is read here."""
    lora, kernel = dict(question["lora"]), question["attention"]
    return TrainingSetup(
        model=ModelSpec(family=read_architecture(folder).family, weights=str(folder), dtype=question["dtype"]),
        model_folder=folder,
        lora=LoraSpec(**{**lora, "targets": tuple(lora["targets"]), "dropout": 0.1 if lora["dropout"] else 0.0}),
        optim=OptimSpec(clip_norm=1.0 if question["clip"] else 0.0),
        mesh=MeshShape(**question["mesh"]),
        accumulation=_micro_batches(question),
        remat=question["remat"],
        compile="none",
        attention=_FUSED.get(kernel, kernel),
        cache=folder,
    )


def _micro_batches(question: Mapping[str, Any]) -> int:
    """With two, all that a longer step has at once is there: what earlier micro-batches left, and one at work."""
    return 2 if question["accumulates"] else 1


def batch_of(question: Mapping[str, Any]) -> PackedBatch:
    """Micro-batches of full sequences; packed ones hold two rows."""
    length, ways = question["length"], MeshShape(**question["mesh"]).dp_size
    shape = (_micro_batches(question), question["micro"] * ways, length)
    # Kernels that mask inside keep no mask, which is what sdpa does with a sequence that is one row.
    row = length // 2 if question["packed"] and question["attention"] not in _FUSED else length
    place = np.arange(length, dtype=np.int32)
    return PackedBatch(
        tokens=np.zeros(shape, np.int32),
        loss_mask=np.broadcast_to(place > 0, shape).copy(),
        positions=np.broadcast_to(place % row, shape).copy(),
        segment_ids=np.broadcast_to(place // row + 1, shape).copy(),
        row_keys=np.ones(shape, np.uint32),
        row_ids=(),
    )


@contextmanager
def _fake_ranks(shape: MeshShape) -> Iterator[Ranks]:
    """Rank 0 of a mesh whose other ranks do not exist."""
    if shape.devices == 1:
        yield Ranks(shape, 0, "cpu", None, None)
        return
    with fake_process_group(shape.devices):
        yield Ranks(shape, 0, "cpu", init_device_mesh("cpu", tuple(getattr(shape, axis) for axis in AXES), mesh_dim_names=AXES), None)


if __name__ == "__main__":
    torch.set_num_threads(1)
    answer_questions("gpu", trace)
