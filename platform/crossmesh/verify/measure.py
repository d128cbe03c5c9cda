"""Times that can be compared on a machine that is never quite still: contenders take turns, and ratios are made within a turn.

Whatever slows the machine down for a while slows all contenders of that round; the median over rounds is free of the odd one, and its
interval is distribution-free. Nothing here knows what is being timed.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

Progress = Callable[[str, int, int], None]
"""Hears of a phase, how much of it is done and of how much."""

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """The median of ratios and an interval that holds the true median with probability `confidence` at least."""

    median: float
    low: float
    high: float
    confidence: float
    """0.95, or less when there are too few rounds for it."""
    rounds: int

    def figures(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def take_turns(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    progress: Progress,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Call every contender once a round and return the seconds of each call, by contender and round.

    The order is reversed from one round to the next, so that none always follows the same other. `warm_up` rounds come first and do not
    count: they compile and fill caches.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(warm_up + rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            start = clock()
            contenders[name]()
            if turn >= warm_up:
                seconds[name].append(clock() - start)
        progress("rounds", turn + 1, warm_up + rounds)
    return seconds


def ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """The ratio of two contenders from values of the same rounds; `ValueError` when there are none, or not of the same rounds."""
    if not above or len(above) != len(below):
        raise ValueError(f"ratios need values of the same rounds, not {len(above)} and {len(below)}")
    values = sorted(one / other for one, other in zip(above, below, strict=True))
    depth, confidence = _depth(len(values))
    return Ratio(median(values), values[depth], values[-1 - depth], confidence, len(values))


def _depth(count: int) -> tuple[int, float]:
    """How many values to leave off at each end of `count` sorted ones, and the confidence of what is left to hold the median.

    The k-th smallest value is above the median as often as fewer than k of `count` fair coins show heads.
    """
    tail, best = 0.0, (0, 1 - 2 * 0.5**count)
    for depth in range((count + 1) // 2):
        tail += math.comb(count, depth) * 0.5**count
        if 1 - 2 * tail < _CONFIDENCE:
            break
        best = (depth, 1 - 2 * tail)
    return best
