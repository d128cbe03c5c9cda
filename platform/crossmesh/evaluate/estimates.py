"""Numbers with intervals: differences, ratios and means of repeats. Pure arithmetic; what is worth comparing is the asker's."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from crossmesh.evaluate.paired import holm

FEWEST_RUNS = 3
"""Runs of each that a verdict on speed needs."""
_LEVEL = 0.05


@dataclass(frozen=True, slots=True)
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
    unit: str = ""
    """Of a difference that is neither relative nor of shares."""

    @property
    def shown(self) -> bool | None:
        """Whether the interval leaves zero out; None without an interval."""
        return None if self.low is None or self.high is None else self.low > 0 or self.high < 0

    @property
    def words(self) -> str:
        """In percent or percentage points, with the interval."""
        if self.unit:
            return f"{self.value:+.6f} {self.unit}"
        unit = "%" if self.relative else " points"
        interval = f" ({_percent(self.low)} to {_percent(self.high)})" if self.low is not None and self.high is not None else ""
        return f"{_percent(self.value)}{unit}{interval}"

    def leads(self, *, higher: bool = True) -> bool:
        """Whether the lead over the other is more than chance; `higher`: the larger value is the better one."""
        ahead = self.value > 0 if higher else self.value < 0
        return bool(self.shown) and ahead and (self.p_value is None or self.p_value < _LEVEL)


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
    return Margin(value, math.expm1(low), math.expm1(high), method="from the intervals of both")


def closest_rival(margins: Sequence[Margin], *, higher: bool = True) -> tuple[int, Margin]:
    """Return which margin of the best over its rivals decides whether it is the best, its p-value corrected for all of them (Holm).

    It is the first one that is not a lead by more than chance, or the first where all are.

    Args:
        margins: of the best over each rival, the next best one first.
        higher: whether the larger value is the better one.
    """
    if any(margin.p_value is not None for margin in margins):
        p_values = holm([1.0 if margin.p_value is None else margin.p_value for margin in margins])
        margins = [replace(margin, p_value=p_value) for margin, p_value in zip(margins, p_values, strict=True)]
    index = next((index for index, margin in enumerate(margins) if not margin.leads(higher=higher)), 0)
    return index, margins[index]


def rate_of_runs(rates: Sequence[float]) -> Estimate:
    """Return the geometric mean of the rates of several runs, with the t interval of their logarithms; of one or two runs without one."""
    logs = [math.log(rate) for rate in rates]
    middle = fmean(logs)
    if len(logs) < FEWEST_RUNS:
        return Estimate(math.exp(middle))
    half = _t_half(logs)
    return Estimate(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def change_over_rounds(rounds: Sequence[tuple[float, float]]) -> Margin:
    """Return how far the first rate of each round is above the second: the mean of their log ratios, its t interval and p-value.

    The runs of a round ran one after the other, so a machine that grows slower or faster by the hour is slower or faster for both.
    """
    ratios = [math.log(one / other) for one, other in rounds]
    middle = fmean(ratios)
    if len(ratios) < FEWEST_RUNS:
        return Margin(math.expm1(middle))
    half = _t_half(ratios)
    method = f"t interval over {len(ratios)} interleaved runs of each"
    return Margin(math.expm1(middle), math.expm1(middle - half), math.expm1(middle + half), method=method, p_value=_t_p_value(ratios))


def _t_half(values: Sequence[float]) -> float:
    # Imported here because it takes a second and few reports need it.
    from scipy import stats

    return float(stats.t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))


def _t_p_value(values: Sequence[float]) -> float:
    from scipy import stats

    error = stdev(values) / math.sqrt(len(values))
    if not error:
        return 0.0 if fmean(values) else 1.0
    return float(2 * stats.t.sf(abs(fmean(values)) / error, len(values) - 1))
