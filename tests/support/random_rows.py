"""Random training rows for the tests of backends."""

import numpy as np

from crossmesh.data.batches import Row


def rows(count: int, seed: int = 0) -> list[Row]:
    """Rows longer than tiny Gemma 4's window of 16, of different lengths."""
    random = np.random.default_rng(seed)
    made = []
    for index in range(count):
        length = int(random.integers(20, 40))
        mask = np.arange(length) >= length - int(random.integers(4, 12))
        made.append(Row(f"row{index}", random.integers(5, 512, length).astype(np.int32), mask))
    return made
