"""Packed rows and the same rows alone: the loss of every token, taken through the backend's own `evaluate`.

A batch whose mask holds one token has that token's loss as its own, so nothing but the `Backend` protocol is needed.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import BackendSpec, BatchSpec, DataSpec, LoraSpec, OptimSpec, PackingSpec
from crossmesh.data.batches import PackedBatch, Row
from crossmesh.data.packing import StepPlan, build_batch, plan_steps
from crossmesh.models.families.registry import read_architecture
from crossmesh.train.backend import Backend, TrainingSetup
from crossmesh.train.worker import make_backend
from crossmesh.verify.rows import random_rows

_LENGTHS = (61, 33, 20, 40, 17, 9)
"""Longer than the window of tiny Gemma 4, 16, and shorter; they fill two sequences of 96."""
_LENGTH = 96
_EVERY = 6
"""Every sixth token is looked at, from the first that can carry loss."""

TokenAddress = tuple[int, int, int]
"""Micro-batch, sequence and position of a token."""


def exactness(backend_name: str, folder: Path, cache: Path) -> dict[str, Any]:
    """Compare the model in `folder` on packed and unpacked rows, its adapter one step away from doing nothing.

    Returns the largest difference (relative where a loss exceeds 1), how many tokens were compared, and the largest difference when the
    packed rows are not kept apart: the power that the comparison has.
    """
    rows = random_rows(_LENGTHS, read_architecture(folder).vocab)
    spec = ExperimentSpec(
        data=DataSpec(max_length=_LENGTH),
        batch=BatchSpec(size=len(rows), micro=1),
        packing=PackingSpec("step"),
        lora=LoraSpec(rank=4),
        optim=OptimSpec(steps=10, learning_rate=1e-2),
        backend=BackendSpec(backend_name),
    )
    (packed_plan,) = plan_steps(_LENGTHS, replace(spec, optim=OptimSpec(steps=1)))
    alone_plan = StepPlan(packed_plan.rows, tuple((row,) for row in packed_plan.rows))
    backend = make_backend(spec)
    backend.init(TrainingSetup.of(spec, folder, cache / "compiled"))
    packed, alone = (build_batch(plan, rows, 1, _LENGTH, 0) for plan in (packed_plan, alone_plan))
    backend.step(packed)
    mixed = replace(packed, segment_ids=(packed.segment_ids > 0).astype(np.int32))
    reference = losses(backend, alone, dict(token_addresses(alone_plan, rows)))
    where = dict(token_addresses(packed_plan, rows))
    return {
        "difference": largest_difference(losses(backend, packed, where), reference),
        "difference_when_rows_mix": largest_difference(losses(backend, mixed, where), reference),
        "tokens": len(reference),
    }


def token_addresses(plan: StepPlan, rows: list[Row]) -> Iterator[tuple[tuple[int, int], TokenAddress]]:
    """Where each token that is looked at lies, as (row, position in the row) and its address in the batch; one sequence a micro-batch."""
    for micro, members in enumerate(plan.sequences):
        start = 0
        for row in members:
            size = len(rows[row].tokens)
            for position in range(1, size, _EVERY):
                yield (row, position), (micro, 0, start + position)
            start += size


def losses(backend: Backend, batch: PackedBatch, where: dict[tuple[int, int], TokenAddress]) -> dict[tuple[int, int], float]:
    """The loss of every token of `where`, in nats; only the micro-batch that holds it is computed."""
    by_token = {}
    for token, (micro, sequence, position) in where.items():
        own = slice(micro, micro + 1)
        mask = np.zeros_like(batch.loss_mask[own])
        mask[0, sequence, position] = True
        arrays = (batch.tokens[own], mask, batch.positions[own], batch.segment_ids[own], batch.row_keys[own])
        alone = PackedBatch(*arrays, batch.row_ids, batch.widths[own])
        by_token[token] = backend.evaluate(alone).loss
    return by_token


def largest_difference(one: dict[tuple[int, int], float], other: dict[tuple[int, int], float]) -> float:
    """The largest difference of two tokens' losses, relative to the loss where that exceeds 1 nat."""
    return max(abs(loss - other[token]) / max(1.0, abs(other[token])) for token, loss in one.items())
