"""Random training rows for the tests of backends, and batches of them."""

from collections.abc import Sequence

import numpy as np

from crossmesh.data.batches import PackedBatch, Row
from crossmesh.data.packing import StepPlan, build_batch
from crossmesh.data.widths import by_length


def rows(count: int, seed: int = 0) -> list[Row]:
    """Rows longer than tiny Gemma 4's window of 16, of different lengths."""
    random = np.random.default_rng(seed)
    made = []
    for index in range(count):
        length = int(random.integers(20, 40))
        mask = np.arange(length) >= length - int(random.integers(4, 12))
        made.append(Row(f"row{index}", random.integers(5, 512, length).astype(np.int32), mask))
    return made


def unpacked(made: Sequence[Row], micro: int, length: int) -> PackedBatch:
    """One row a sequence, padded to `length`, in micro-batches of `micro`."""
    every = tuple(range(len(made)))
    return build_batch(StepPlan(every, tuple((index,) for index in every)), made, micro, length, 0)


def ragged(made: Sequence[Row], micro: int, multiple: int = 1) -> PackedBatch:
    """One row a sequence, in micro-batches of `micro` rows of similar length, each as wide as its longest, rounded up to `multiple`."""
    every = tuple(range(len(made)))
    lengths = [len(row.tokens) for row in made]
    groups = by_length(every, lengths, micro)
    widths = tuple(-(-lengths[group[0]] // multiple) * multiple for group in groups)
    return build_batch(StepPlan(every, tuple((index,) for group in groups for index in group), widths), made, micro, max(widths), 0)


def packed(made: Sequence[Row], length: int) -> PackedBatch:
    """All rows behind one another in one sequence, then padding."""
    every = tuple(range(len(made)))
    return build_batch(StepPlan(every, (every,)), made, 1, length, 0)
