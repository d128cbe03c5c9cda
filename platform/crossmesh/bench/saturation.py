"""Finds the highest rate that a server sustains, by doubling or halving and then between: a pure decision from what was tried."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

_CLOSE = 1.15
"""Sustained and not sustained are so near to each other when the search ends; nearer, arrivals at random decide."""
_MOST = 16
"""Rates tried at most."""


@dataclass(frozen=True)
class Saturation:
    """Between which rates a server saturates, requests a second."""

    sustained: float | None
    """The highest rate that was sustained; None: not one that was tried."""
    not_sustained: float | None
    """The lowest one that was not; None: all that were tried were sustained."""


def saturation(tried: Mapping[float, bool]) -> Saturation:
    """The answer so far. A rate above one that was not sustained counts for nothing, whatever it did."""
    failed = min((rate for rate, held in tried.items() if not held), default=None)
    held = [rate for rate, ok in tried.items() if ok and (failed is None or rate < failed)]
    return Saturation(max(held, default=None), failed)


def next_rate(tried: Mapping[float, bool], start: float) -> float | None:
    """The rate to try next; None when the answer is near enough or too much was tried."""
    if not tried:
        return start
    found = saturation(tried)
    if len(tried) >= _MOST:
        return None
    if found.not_sustained is None:
        return 2 * max(tried)
    if found.sustained is None:
        return found.not_sustained / 2
    if found.not_sustained / found.sustained <= _CLOSE:
        return None
    return float(f"{sqrt(found.sustained * found.not_sustained):.3g}")
