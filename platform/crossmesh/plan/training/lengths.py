"""How rows fill sequences, from their mean and 99th percentile: the data set itself is not needed to plan.

Lengths are a log-normal distribution cut at the limit, which is what code and chat data look like; packing is the code that a run uses.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist, fmean

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import BatchSpec, DataSpec, OptimSpec, PackingSpec
from crossmesh.data.packing import plan_steps
from crossmesh.data.widths import Widths, widths_of

_Z99 = NormalDist().inv_cdf(0.99)
_ROWS = 1024
_STEPS = 32
_WIDTHS = 8
"""Widths that a step's time is summed over: attention grows with their square."""
_MIXER = 389
"""A prime that does not divide `_ROWS`: puts even quantiles into an order without a trend."""


@dataclass(frozen=True)
class Filling:
    """What one optimizer step holds on average."""

    sequences: float
    """Sequences that are computed, over the whole mesh; padding ones included."""
    tokens: float
    """Real tokens."""
    row_tokens: float
    """Mean length of a row."""
    row_pairs: tuple[tuple[int, float], ...]
    """By window (0: none): pairs of tokens that see each other within rows, per real token."""
    widths: tuple[tuple[int, float], ...]
    """Tokens that sequences are computed at, and the share of the micro-batches that are so wide."""

    @property
    def computed(self) -> float:
        """Tokens that are computed, over the whole mesh; padding included."""
        return self.sequences * sum(width * share for width, share in self.widths)

    def pairs(self, window: int) -> float:
        """Pairs per real token within rows under `window`."""
        return next(value for size, value in self.row_pairs if size == window)


def row_lengths(mean: float, p99: float, limit: int) -> tuple[int, ...]:
    """Lengths at even quantiles of the distribution, mixed; those over `limit` are dropped rows. A mean of 0: all as long as the limit."""
    if not mean or mean >= limit:
        return (limit,)
    mu, sigma = log_normal(mean, p99 or min(2 * mean, limit))
    normal = NormalDist(mu, sigma) if sigma else None
    if normal is None:
        return (round(mean),)
    kept = normal.cdf(math.log(limit))
    sizes = [math.exp(normal.inv_cdf((index + 0.5) / _ROWS * kept)) for index in range(_ROWS)]
    return tuple(max(4, min(limit, round(sizes[index * _MIXER % _ROWS]))) for index in range(_ROWS))


def log_normal(mean: float, p99: float) -> tuple[float, float]:
    """Solve exp(mu + sigma^2 / 2) = mean and exp(mu + z sigma) = p99 for (mu, sigma); the smaller sigma of the two."""
    ratio = min(math.log(p99 / mean), _Z99**2 / 2)
    sigma = _Z99 - math.sqrt(_Z99**2 - 2 * ratio)
    return math.log(mean) - sigma**2 / 2, sigma


def filling(spec: ExperimentSpec, windows: tuple[int, ...], rows: Sequence[int] = ()) -> Filling:
    """What a step of `spec` holds; `windows` are those of the model's layers, 0 where there is none. `rows` are real lengths, if known."""
    lengths = tuple(rows) or row_lengths(spec.plan.mean_tokens, spec.plan.p99_tokens, spec.data.max_length)
    together = spec.micro_batch * spec.mesh_shape.dp_size
    packing = replace(spec.packing, length=spec.sequence_length if spec.packing.mode != "none" else 0)
    sequences, tokens, widths = _packed(lengths, spec.data.max_length, packing, spec.batch.size, together, widths_of(lengths, spec))
    return Filling(sequences, tokens, fmean(lengths), tuple((window, _row_pairs(lengths, window)) for window in windows), widths)


@lru_cache(maxsize=4096)
def _packed(
    lengths: tuple[int, ...], limit: int, packing: PackingSpec, batch: int, together: int, possible: Widths
) -> tuple[float, float, tuple[tuple[int, float], ...]]:
    """Mean sequences, filled up to a multiple of `together`, mean real tokens of a step, and `Filling.widths`."""
    # Unpacked, a sample of the rows says how wide micro-batches are; the tokens of a step are known.
    steps = -(-min(len(lengths), _ROWS) // batch) if packing.mode == "none" else _STEPS
    spec = ExperimentSpec(data=DataSpec(max_length=limit), packing=packing, batch=BatchSpec(batch, 1), optim=OptimSpec(steps=steps))
    plans = plan_steps(lengths, spec)
    # On one device with one sequence at a time nothing is filled up, so that `together` can be rounded to here.
    sequences = fmean(-(-len(plan.sequences) // together) * together for plan in plans)
    filled = [[sum(lengths[row] for row in rows) for rows in plan.sequences] for plan in plans]
    needed = [possible.of(max(step[start : start + together])) for step in filled for start in range(0, len(step), together)]
    tokens = batch * fmean(lengths) if packing.mode == "none" else fmean(sum(step) for step in filled)
    return sequences, tokens, _shares(needed)


def _shares(widths: Sequence[int]) -> tuple[tuple[int, float], ...]:
    """At most `_WIDTHS` widths and their shares; neighbours are put together at their mean, so that the tokens stay the same."""
    ordered = sorted(widths)
    if len(counts := Counter(ordered)) <= _WIDTHS:
        return tuple((width, count / len(ordered)) for width, count in sorted(counts.items()))
    bounds = [len(ordered) * part // _WIDTHS for part in range(_WIDTHS + 1)]
    parts = [ordered[low:high] for low, high in pairwise(bounds) if high > low]
    return tuple((round(fmean(part)), len(part) / len(ordered)) for part in parts)


@lru_cache(maxsize=256)
def _row_pairs(lengths: tuple[int, ...], window: int) -> float:
    return sum(causal_pairs(length, window) for length in lengths) / sum(lengths)


def causal_pairs(length: int, window: int) -> float:
    """Pairs (t, s) with s <= t, and s > t - window where there is a window, of `length` tokens."""
    if not window or length <= window:
        return length * (length + 1) / 2
    return window * (window + 1) / 2 + (length - window) * window
