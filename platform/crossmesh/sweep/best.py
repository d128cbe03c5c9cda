"""What may be said of the best of a search, or of a sweep: by how much, or that the difference is too small to matter. Pure.

A loss is exact; a rate, and a cost that follows from it, is decided over interleaved repeats only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from crossmesh.config.verdicts import MattersSpec
from crossmesh.evaluate.estimates import FEWEST_RUNS, Margin, change_over_rounds, closest_rival, rate_of_runs
from crossmesh.installation import job_command
from crossmesh.sweep.state import DONE, SKIPPED, Point

_NAMED = 5
"""Most trials that are named as equal."""
_GROUPS = 3
"""Most groups of trials that learnt the same whose rates are judged; `crossmesh compare` has all."""

Rates = Mapping[str, Mapping[tuple[str, str], float]]
"""By run id: the rates of its sound repeats, by round and number of steps."""


@dataclass(frozen=True)
class Verdict:
    """Which trial of a sweep is best in one quantity, if any is."""

    quantity: str
    """`loss`, `tokens/s` or `USD per million tokens`."""
    best: str
    """Label of the trial with the best value."""
    value: float
    decided: bool
    """Whether it is better than all others by a difference that matters and is more than chance."""
    words: str
    repeats: bool = False
    """Whether repeats of the trials would decide it."""


@dataclass(frozen=True)
class Learnt:
    """What the run of a point learnt, and from what; empty where that is not known."""

    science: str = ""
    """Fingerprint."""
    data: str = ""
    """Digest of the rows."""


def verdicts(points: Sequence[Point], matters: MattersSpec, learnt: Mapping[str, Learnt], rates: Rates) -> tuple[Verdict, ...]:
    """Return what is known of the trials of a sweep that ran to their end; none of fewer than two.

    Losses are held against each other where the rows were the same, rates and costs among trials of one science.

    Args:
        points: of the sweep.
        matters: the smallest differences that matter.
        learnt: by run id.
        rates: what the trials' repeats measured.
    """
    ended = [point for point in points if point.state in (DONE, SKIPPED)]
    losses = [point for point in ended if point.loss is not None and isfinite(point.loss)]
    found = [_of_loss(losses, matters, len({_of(learnt, point).data for point in losses}))] if len(losses) > 1 else []
    sciences: dict[str, list[Point]] = {}
    for point in ended:
        sciences.setdefault(_of(learnt, point).science, []).append(point)
    for alike in [several for several in sciences.values() if len(several) > 1][:_GROUPS]:
        real = [point for point in alike if not point.emulated] or alike
        speeds = [(point.tokens_per_s, point) for point in real if point.tokens_per_s]
        costs = [(_usd_per_million(point), point) for point in real if point.tokens_per_s and point.usd_per_hour]
        if len(speeds) > 1:
            found.append(_timed("tokens/s", sorted(speeds, key=lambda one: -one[0]), rates, matters.speed))
        if len(costs) > 1:
            found.append(_timed("USD per million tokens", sorted(costs, key=lambda one: one[0]), rates, matters.usd))
    return tuple(found)


def _of(learnt: Mapping[str, Learnt], point: Point) -> Learnt:
    return learnt.get(point.run_id, Learnt())


def _usd_per_million(point: Point) -> float:
    return (point.usd_per_hour or 0.0) / 3600 / (point.tokens_per_s or 1.0) * 1e6


def _of_loss(points: Sequence[Point], matters: MattersSpec, kinds_of_rows: int) -> Verdict:
    ranked = sorted(points, key=lambda point: point.loss or 0.0)
    best, value = ranked[0], ranked[0].loss or 0.0
    if kinds_of_rows > 1:
        return Verdict("loss", "", value, decided=False, words="not compared: the trials did not have the same rows")
    decided = len(leaders(ranked, "loss", matters)) == 1
    return Verdict("loss", _name(best), value, decided, f"{value:.4f} nats/token; {best_words(ranked, 'loss', matters)}")


def _timed(quantity: str, ranked: Sequence[tuple[float, Point]], rates: Rates, percent: float) -> Verdict:
    """The verdict on a rate or a cost: over the rounds that the best has in common with each of the others, Holm-corrected."""
    if all(len(rates.get(point.run_id, {})) >= FEWEST_RUNS for _, point in ranked):
        higher = quantity == "tokens/s"
        ranked = sorted(((_over_repeats(quantity, point, rates), point) for _, point in ranked), key=lambda one: one[0], reverse=higher)
    value, best = ranked[0]
    amount = f"{value:,.0f}" if quantity == "tokens/s" else f"{value:.4f}"
    head = f"{_name(best)} with {amount} {quantity}"
    margins = [_margin(quantity, best, other, rates) for _, other in ranked[1:]]
    if any(margin.shown is None for margin in margins):
        rounds = "one run each" if not any(rates.get(point.run_id) for _, point in ranked) else f"fewer than {FEWEST_RUNS} repeats of each"
        leads = f"first is {head}, {_percent(abs(ranked[1][0] / value - 1))} ahead of {_name(ranked[1][1])}"
        return Verdict(quantity, _name(best), value, decided=False, words=f"not decided: {rounds}; {leads}", repeats=True)
    index, margin = closest_rival(margins)
    low, high = margin.low or 0.0, margin.high or 0.0
    corrected = f", Holm-corrected for {len(margins)} comparisons" if len(margins) > 1 else ""
    interval = f"{_percent(margin.value)} ({_percent(low)} to {_percent(high)})"
    shown = f"{interval} ahead of {_name(ranked[index + 1][1])}, p = {margin.p_value:.2g}{corrected}"
    small = abs(margin.value) < percent / 100
    if small and (margin.shown or max(abs(low), abs(high)) <= percent / 100):
        return Verdict(quantity, _name(best), value, decided=False, words=f"equal within {percent:g}%: {head}, {shown}")
    if margin.leads():
        return Verdict(quantity, _name(best), value, decided=True, words=f"best is {head}, {shown}")
    return Verdict(quantity, _name(best), value, decided=False, words=f"no difference shown: {head}, {shown}")


def _over_repeats(quantity: str, point: Point, rates: Rates) -> float:
    """The rate or the cost of a trial as all its repeats give it."""
    mean = replace(point, tokens_per_s=rate_of_runs(list(rates[point.run_id].values())).value)
    return mean.tokens_per_s or 0.0 if quantity == "tokens/s" else _usd_per_million(mean)


def _margin(quantity: str, best: Point, other: Point, rates: Rates) -> Margin:
    """How far the best is ahead of another over their common rounds; positive where it is ahead, whatever the quantity."""
    mine, theirs = rates.get(best.run_id, {}), rates.get(other.run_id, {})
    common = [(mine[key], theirs[key]) for key in mine if key in theirs]
    if quantity != "tokens/s":  # The price of a token is that of an hour over the rate: how much more the other one costs.
        ours, others = best.usd_per_hour or 1.0, other.usd_per_hour or 1.0
        common = [(one / ours, another / others) for one, another in common]
    return change_over_rounds(common) if common else Margin(0.0)


def _name(point: Point) -> str:
    return point.label or point.key


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def leaders(ranked: Sequence[Point], metric: str, matters: MattersSpec) -> tuple[Point, ...]:
    """Return the best, and all that are no worse by a difference that matters.

    Args:
        ranked: trials that ran to their end, the best first.
        metric: `loss` or `tokens_per_s`.
        matters: the smallest differences that matter.
    """
    return tuple(one for one in ranked if _gap(ranked[0], one, metric) < _smallest(metric, matters) or one is ranked[0])


def best_words(ranked: Sequence[Point], metric: str, matters: MattersSpec) -> str:
    """Say which is best and by how much, or that none is. Speeds are of one run each, which decides nothing."""
    if not ranked:
        return "best: none ran to its end"
    equal = leaders(ranked, metric, matters)
    named = ", ".join(_name(one) for one in equal[:_NAMED])
    more = f" and {len(equal) - _NAMED} more" if len(equal) > _NAMED else ""
    if len(equal) > 1:
        return f"no difference that matters: equal within {_amount(_smallest(metric, matters), metric)}: {named}{more}"
    if len(ranked) == 1:
        return f"the only one that ran to its end: {named}"
    second = _name(ranked[1])
    by = _amount(_gap(ranked[0], ranked[1], metric), metric)
    if metric == "loss":
        return f"best of those that ran to their end: {named}, lower by {by} than {second}; one run each"
    decide = f"Repeats decide: {job_command('compare')} sweep=ID repeat=3"
    return f"not decided, one run each; the highest is {named}, by {by} over {second}. {decide}"


def _smallest(metric: str, matters: MattersSpec) -> float:
    return matters.loss if metric == "loss" else matters.speed


def _gap(best: Point, other: Point, metric: str) -> float:
    """How much worse `other` is: nats per loss token, or percent of its speed."""
    if metric == "loss":
        return (other.loss or 0.0) - (best.loss or 0.0)
    slower = other.tokens_per_s or 0.0
    return 100 * ((best.tokens_per_s or 0.0) / slower - 1) if slower > 0 else float("inf")


def _amount(value: float, metric: str) -> str:
    return f"{value:.4g} nats/token" if metric == "loss" else f"{value:.3g}%"
