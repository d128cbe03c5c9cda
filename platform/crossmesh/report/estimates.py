"""Numbers with intervals: differences, ratios and medians. Pure arithmetic; what is worth comparing is `comparable`'s."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_Z = 1.959964
"""Of a 95% interval."""
_FEWEST = 6
"""Values that a distribution-free 95% interval of a median needs: with five, even the extremes cover only 94%."""
_EXACT_UP_TO = 200


@dataclass(frozen=True)
class Estimate:
    """A value and its 95% interval, where there is one."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends, or None."""
        return None if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True)
class Margin:
    """How far one estimate is from another: a difference, or a relative change where `relative`."""

    value: float
    low: float | None = None
    high: float | None = None
    relative: bool = True
    method: str = ""
    """How the interval was made; empty without one."""
    p_value: float | None = None

    @property
    def shown(self) -> bool | None:
        """Whether the interval leaves zero out; None without an interval."""
        return None if self.low is None or self.high is None else self.low > 0 or self.high < 0

    @property
    def words(self) -> str:
        """In percent or percentage points, with the interval."""
        unit = "%" if self.relative else " points"
        interval = f" ({_percent(self.low)} to {_percent(self.high)})" if self.low is not None and self.high is not None else ""
        return f"{_percent(self.value)}{unit}{interval}"


def _percent(value: float) -> str:
    return f"{100 * value:+,.1f}" if abs(value) < 10 else f"{100 * value:+,.0f}"


def difference(one: Estimate, other: Estimate) -> Margin:
    """Return `one` minus `other`, of shares, with the interval that follows from their own.

    Newcombe 1998, method 10 (doi:10.1002/sim.2779). It takes the two as independent; where both answered the same problems the true
    interval is as a rule narrower.
    """
    value = one.value - other.value
    mine, others = one.interval, other.interval
    if mine is None or others is None:
        return Margin(value, relative=False)
    low = value - math.hypot(one.value - mine[0], others[1] - other.value)
    high = value + math.hypot(mine[1] - one.value, other.value - others[0])
    return Margin(value, max(-1.0, low), min(1.0, high), relative=False, method="Newcombe, unpaired")


def relative_change(one: Estimate, other: Estimate) -> Margin:
    """Return `one` over `other`, less one, for positive values; its interval follows from theirs, combined in logarithms.

    MOVER of a ratio (Zou and Donner 2008, doi:10.1002/sim.3095), the same as `difference` of the logarithms.
    """
    value = one.value / other.value - 1
    mine, others = one.interval, other.interval
    if mine is None or others is None or min(*mine, *others) <= 0:
        return Margin(value)
    middle = math.log(one.value / other.value)
    low = middle - math.hypot(math.log(one.value / mine[0]), math.log(others[1] / other.value))
    high = middle + math.hypot(math.log(mine[1] / one.value), math.log(other.value / others[0]))
    return Margin(value, math.expm1(low), math.expm1(high), method="over the steps of one run each")


def median_estimate(values: Sequence[float], median: float) -> Estimate:
    """Return `median`, which is that of `values`, with the interval between two order statistics that covers it with 95%.

    It assumes nothing of their distribution, but that they are independent; fewer than six values have none.
    """
    count = len(values)
    if count < _FEWEST:
        return Estimate(median)
    rank = _rank(count)
    ordered = sorted(values)
    return Estimate(median, min(median, ordered[rank - 1]), max(median, ordered[count - rank]))


def _rank(count: int) -> int:
    """The largest rank below which the median of `count` values lies with at most 2.5%, counted from 1."""
    if count > _EXACT_UP_TO:
        return max(1, math.floor((count - _Z * math.sqrt(count)) / 2))
    below, rank = 0, 0
    while (below + math.comb(count, rank)) / 2**count <= 0.025:
        below += math.comb(count, rank)
        rank += 1
    return max(1, rank)
