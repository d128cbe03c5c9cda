"""How far two engines are apart on the same tokens: logits, log-probabilities, greedy tokens, and the arrays of an adapter.

Pure functions of arrays; the bounds stand in `exchange.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LogitAgreement:
    """How far logits are from a reference, over all positions."""

    max_abs: float
    relative: float
    """`max_abs` over the standard deviation of the reference."""
    kl: float
    """Largest Kullback-Leibler divergence of any position, reference to logits, in nats."""
    top1: float
    """Share of positions with the same most likely token."""


def agreement(logits: FloatArray, reference: FloatArray) -> LogitAgreement:
    """Hold `logits` against `reference`, both [B, T, vocab]."""
    max_abs = float(np.abs(logits - reference).max())
    divergence = 0.0
    for ours, theirs in zip(logits, reference, strict=True):  # A row at a time: float64 of a large vocabulary is large.
        q, p = log_softmax(ours), log_softmax(theirs)
        divergence = max(divergence, float((np.exp(p) * (p - q)).sum(-1).max()))
    return LogitAgreement(
        max_abs=max_abs,
        relative=max_abs / float(reference.std()),
        kl=divergence,
        top1=float((logits.argmax(-1) == reference.argmax(-1)).mean()),
    )


def log_softmax(logits: FloatArray) -> Doubles:
    """Log-probabilities [..., vocab], float64."""
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(-1, keepdims=True)
    result: Doubles = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def greedy_gap(logits: FloatArray, tokens: IntArray, first: int) -> float:
    """How much less than the most likely token any of `tokens` [B, T] from position `first` on is worth, in logits [B, T, vocab].

    0 when each is the most likely one after all before it. A near tie that goes the other way costs its tie and nothing that follows.
    """
    before = logits[:, first - 1 : -1]
    chosen = np.take_along_axis(before, tokens[:, first:, None].astype(np.int64), -1)[..., 0]
    return float((before.max(-1) - chosen).max())


def logprob_difference(ids: IntArray, values: FloatArray, logits: FloatArray) -> float:
    """Largest difference of log-probabilities `values` [B, T-1, k] of the tokens `ids`, which follow positions 0, 1, ..., from `logits`."""
    worst = 0.0
    for row, given, own in zip(ids, values, logits, strict=True):
        expected = np.take_along_axis(log_softmax(own[:-1]), row.astype(np.int64), -1)
        worst = max(worst, float(np.abs(given - expected).max()))
    return worst


def module_errors(before: Mapping[Any, FloatArray], after: Mapping[Any, FloatArray]) -> dict[str, float]:
    """The relative error of each array, by its name or path; infinite where one is missing or has another shape."""
    errors = {}
    for name in before.keys() | after.keys():
        one, other = before.get(name), after.get(name)
        error = float("inf")
        if one is not None and other is not None and one.shape == other.shape:
            size = float(np.linalg.norm(one.astype(np.float64)))
            apart = float(np.linalg.norm(one.astype(np.float64) - other))
            error = apart / size if size else apart
        errors[".".join(map(str, name)) if isinstance(name, tuple) else str(name)] = error
    return errors


def worst_of(errors: Mapping[str, float]) -> tuple[str, float]:
    """Name and error of the worst array; the first by name among equals."""
    name = max(sorted(errors), key=lambda one: errors[one])
    return name, errors[name]
