"""Which rows make up each optimizer step: a pure function of the seed, the same for every backend and every restart.

Orders come from digests and not from a random generator, so that they hold across machines and library versions.
"""

import hashlib
from collections.abc import Iterator

from crossmesh.errors import require


def epoch_order(row_count: int, seed: int, epoch: int) -> list[int]:
    """Return the row indices 0 to `row_count` - 1 in the order of one epoch."""
    keys = [hashlib.blake2b(f"{seed}/{epoch}/{index}".encode(), digest_size=16).digest() for index in range(row_count)]
    return sorted(range(row_count), key=keys.__getitem__)


def row_stream(row_count: int, seed: int) -> Iterator[int]:
    """Yield row indices for ever: epoch after epoch, each a new permutation of all `row_count` rows."""
    epoch = 0
    while True:
        yield from epoch_order(row_count, seed, epoch)
        epoch += 1


def step_rows(row_count: int, batch_size: int, steps: int, seed: int) -> list[list[int]]:
    """Return, for each of `steps` optimizer steps, the indices of its `batch_size` rows.

    The steps read one endless stream of epochs, each a new permutation of all rows: a step may reach over the end of an epoch, and
    no row is left out or padded. Fewer steps are a prefix of more. Raises `InputError` for a size that is not positive.
    """
    require(row_count > 0, "row_count", row_count, "at least one row")
    require(batch_size > 0, "batch.size", batch_size, "a positive number of sequences")
    require(steps >= 0, "optim.steps", steps, "zero or more")
    stream = row_stream(row_count, seed)
    return [[next(stream) for _ in range(batch_size)] for _ in range(steps)]
