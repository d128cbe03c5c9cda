"""Rows to measure on: lengths distributed as in the paper, tokens drawn, loss on the last part of each row.

The paper's rows (mean 922 tokens, p99 2,553, p99.5 2,894, 99.6% within the limit of 3,072) are a log-normal distribution to three digits,
from which rows over the limit are dropped. A lower limit scales all of it down, so that a CPU sees the same shares of padding.
"""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from crossmesh.data.batches import Row

PAPER_LIMIT = 3072
_MU, _SIGMA = 6.7068, 0.4893
"""Solved from the mean, exp(mu + sigma^2 / 2) = 922, and p99, exp(mu + 2.326 sigma) = 2553."""
_LOSS_SHARE = 0.15
_SHORTEST = 4
_MIXER = 7919
"""A prime, larger than any number of rows that is asked for."""


def paper_lengths(count: int, limit: int) -> list[int]:
    """`count` row lengths at even quantiles of the paper's distribution, those over the limit left out, scaled to `limit`, mixed."""
    normal = NormalDist(_MU, _SIGMA)
    kept = normal.cdf(float(np.log(PAPER_LIMIT)))
    sizes = [np.exp(normal.inv_cdf((index + 0.5) / count * kept)) * limit / PAPER_LIMIT for index in range(count)]
    return [max(_SHORTEST, min(limit, round(sizes[index * _MIXER % count]))) for index in range(count)]


def random_rows(lengths: Sequence[int], vocab: int, seed: int = 0) -> list[Row]:
    """A row of each length with random tokens; the loss is on the last 15%, one token at least."""
    random = np.random.default_rng(seed)
    rows = []
    for index, length in enumerate(lengths):
        mask = np.arange(length) >= length - max(1, round(_LOSS_SHARE * length))
        rows.append(Row(f"row{index}", random.integers(0, vocab, length).astype(np.int32), mask))
    return rows
