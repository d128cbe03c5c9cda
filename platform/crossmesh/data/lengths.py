"""Length statistics of tokenized rows: what a sequence-length limit keeps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossmesh.errors import InputError

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.5)
LIMITS = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384, 32768)


@dataclass(frozen=True)
class LengthStatistics:
    """Lengths in tokens, template included."""

    count: int
    total: int
    mean: float
    shortest: int
    longest: int
    percentiles: tuple[tuple[float, float], ...]
    """(percentile, length), linearly interpolated between rows."""
    kept: tuple[tuple[int, float], ...]
    """(limit, share of the rows that are not longer), up to the first limit that keeps all."""


def length_statistics(lengths: Sequence[int], limits: Sequence[int] = LIMITS) -> LengthStatistics:
    """Summarise row lengths in tokens. Raises `InputError` when there are none."""
    if not lengths:
        raise InputError("There are no rows to take lengths of. Give a dataset with at least one row that is not empty.")
    values = np.asarray(lengths, np.int64)
    kept: list[tuple[int, float]] = []
    for limit in sorted(limits):
        kept.append((limit, float((values <= limit).mean())))
        if limit >= values.max():
            break
    return LengthStatistics(
        count=len(values),
        total=int(values.sum()),
        mean=float(values.mean()),
        shortest=int(values.min()),
        longest=int(values.max()),
        percentiles=tuple((percentile, float(np.percentile(values, percentile))) for percentile in PERCENTILES),
        kept=tuple(kept),
    )
