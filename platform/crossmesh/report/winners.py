"""Which variant is best in which quantity, by how much, and whether that is more than chance: within what may be compared, never across.

A speed is won over interleaved repeats only, a difference below the smallest that matters is none, and the p-values of one choice among
several are corrected for their number (Holm). Pure. What may be compared is `comparable`'s verdict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from crossmesh.config.verdicts import MattersSpec
from crossmesh.evaluate.estimates import FEWEST_RUNS, Margin, change_over_rounds, closest_rival, difference, relative_change
from crossmesh.evaluate.paired import compare_counts
from crossmesh.metrics import HIGHER, MFU, NEITHER, TOKENS_PER_S, USD_PER_MILLION_TOKENS
from crossmesh.report.gate.comparable import Comparison
from crossmesh.report.tables.quantity import COST, EVALUATION, LOSS, SERVED, Quantity
from crossmesh.report.variants import Results, Variant

EQUAL, UNDECIDED, SHOWN, SINGLE, ONE_RUN = "equal", "no difference shown", "shown", "one measurement each", "not decided"
_LEVEL, _Z = 0.05, 1.959964
_NAMED = 3
_REPEATED = (TOKENS_PER_S.name, USD_PER_MILLION_TOKENS.name, MFU.name)
"""Quantities that the repeats of a training measure again."""


@dataclass(frozen=True)
class Winner:
    """The best of one class of comparable variants in one quantity."""

    quantity: Quantity
    names: tuple[str, ...]
    """All that were compared."""
    best: str
    second: str
    """The next best, or the first one over which the best has no lead by more than chance."""
    margin: Margin
    """Of the best over `second`."""
    verdict: str
    """`EQUAL`, `UNDECIDED`, `SHOWN`, `ONE_RUN` where there are too few repeats, or `SINGLE` where there is no interval to judge by."""
    matters: str = ""
    """The smallest difference that matters, with its unit."""
    why: str = ""
    """Of `ONE_RUN`: what there is."""
    candidates: int = 2
    """Among which the best was picked."""

    @property
    def words(self) -> str:
        """By how much the best one leads: `12.3% more (11.0 to 13.5)`, `5.0 points (-1.2 to +11.0), p = 0.04`."""
        if self.verdict == EQUAL:
            return f"equal within {self.matters}"
        p_value = f", p = {self.margin.p_value:.2g}{self._corrected}" if self.margin.p_value is not None else ""
        if self.margin.unit:
            return f"{abs(self.margin.value):.4f} {self.margin.unit} {'more' if self.quantity.better == HIGHER else 'less'}"
        if not self.margin.relative:
            return self.margin.words + p_value
        ends = [] if self.margin.low is None or self.margin.high is None else [self.margin.low, self.margin.high]
        if self.quantity.better == HIGHER:
            return _leads(self.margin.value, ends, "more") + p_value
        return _leads(-self.margin.value, [-end for end in reversed(ends)], "less") + p_value

    @property
    def _corrected(self) -> str:
        return f", Holm-corrected for {self.candidates - 1} comparisons" if self.candidates > 2 else ""

    @property
    def sentence(self) -> str:
        """Who leads by how much, and whether that is more than chance."""
        if self.verdict == EQUAL:
            return self.words
        if self.verdict == ONE_RUN:
            return f"{ONE_RUN}: {self.why}"
        return f"{UNDECIDED}: {self.best} {self.words}" if self.verdict == UNDECIDED else f"{self.best}, {self.words}"


def _leads(value: float, ends: list[float], word: str) -> str:
    interval = f" ({100 * ends[0]:,.1f} to {100 * ends[1]:,.1f})" if ends else ""
    return f"{100 * value:,.1f}% {word}{interval}"


def winners(results: Results, comparison: Comparison, found: tuple[Quantity, ...]) -> tuple[Winner, ...]:
    """Return the winner of every quantity that has a better side, for each class in which two or more may be compared."""
    variants = {variant.name: variant for variant in results.variants}
    ranked: list[Winner] = []
    for quantity in found:
        if quantity.better == NEITHER:
            continue
        classes = ([name for name in names if name in quantity.estimates] for names in _classes(quantity, comparison))
        ranked += [winner for names in classes if (winner := _winner(quantity, names, variants, results.matters))]
    return tuple(ranked)


def _classes(quantity: Quantity, comparison: Comparison) -> tuple[tuple[str, ...], ...]:
    """Losses are compared across how models were examined afterwards; answers are not."""
    aspect = "speed" if quantity.aspect == "quality" and quantity.section != EVALUATION else quantity.aspect
    return comparison.gates[aspect].classes


def _winner(quantity: Quantity, names: list[str], variants: Mapping[str, Variant], matters: MattersSpec) -> Winner | None:
    sign = -1 if quantity.better == HIGHER else 1
    finite = [name for name in names if quantity.estimates[name].value == quantity.estimates[name].value]
    if len(finite) < 2:
        return None
    ordered = sorted(finite, key=lambda name: sign * quantity.estimates[name].value)
    best = ordered[0]
    size, words = smallest(quantity, matters)
    if timed_once(quantity):
        return _raced(quantity, tuple(finite), ordered, variants, (size, words))
    rival, margin = _won_by(quantity, ordered, variants)
    candidates = len(_picked_from(finite, variants))
    return Winner(quantity, tuple(finite), best, rival, margin, _verdict(margin, size), words, candidates=candidates)


def _won_by(quantity: Quantity, ordered: Sequence[str], variants: Mapping[str, Variant]) -> tuple[str, Margin]:
    """The closest rival of the first, and the margin over it with a p-value corrected for all that the first was picked from."""
    best, second = ordered[:2]
    if quantity.key == LOSS:
        return second, absolute(quantity, best, second)
    margin = margin_of(quantity, variants[best], variants[second])
    rivals = [second, *(name for name in _picked_from(ordered, variants) if name not in (best, second))]
    if margin.low is None or len(rivals) == 1:
        return second, margin
    margins = [margin_of(quantity, variants[best], variants[name]) for name in rivals]
    index, closest = closest_rival(
        [replace(one, p_value=_p_value(one)) for one in margins if one.low is not None], higher=quantity.better == HIGHER
    )
    return [name for name, one in zip(rivals, margins, strict=True) if one.low is not None][index], closest


def _picked_from(names: Sequence[str], variants: Mapping[str, Variant]) -> list[str]:
    """The candidates among which the best was picked: a base that was not trained is what they are held against."""
    trained = [name for name in names if variants[name].training is not None]
    return trained if len(trained) > 1 else list(names)


def _p_value(margin: Margin) -> float:
    """That of its test; where only an interval is known, the one of a normal distribution with such an interval."""
    if margin.p_value is not None or margin.low is None or margin.high is None:
        return 1.0 if margin.p_value is None else margin.p_value
    spread = (margin.high - margin.low) / (2 * _Z)
    return 2 * NormalDist().cdf(-abs(margin.value) / spread) if spread else float(not margin.value)


def _raced(
    quantity: Quantity, names: tuple[str, ...], ordered: Sequence[str], variants: Mapping[str, Variant], limit: tuple[float, str]
) -> Winner:
    """The fastest (or cheapest), if interleaved repeats show it; what a run took once shows nothing of the machine."""
    best, second = ordered[:2]
    size, words = limit
    if quantity.key not in _REPEATED:
        change = relative_change(quantity.estimates[best], quantity.estimates[second]) if quantity.estimates[second].value else Margin(0.0)
        once = Margin(change.value)
        return Winner(quantity, names, best, second, once, ONE_RUN, words, "one run each")
    rounds = {name: common_rounds(variants[best], variants[name]) for name in ordered[1:]}
    short = [name for name in ordered[1:] if len(rounds[name]) < FEWEST_RUNS]
    if short:
        once = Margin(quantity.estimates[best].value / quantity.estimates[second].value - 1)
        over = _over_rounds(quantity, variants[best], variants[second]) if rounds[second] else once
        return Winner(quantity, names, best, second, Margin(over.value), ONE_RUN, words, _lacking(variants, (best, *short)))
    margins = [_over_rounds(quantity, variants[best], variants[name]) for name in ordered[1:]]
    index, margin = closest_rival(margins, higher=quantity.better == HIGHER)
    return Winner(quantity, names, best, ordered[1 + index], margin, _verdict(margin, size), words, candidates=len(names))


def _lacking(variants: Mapping[str, Variant], names: Sequence[str]) -> str:
    """What there is where too few repeats are."""
    repeats = [one for name in names for one in variants[name].repeats]
    if not repeats:
        return "one run each"
    loaded = [f"{name} ({', '.join(one.load)})" for name in names for one in variants[name].repeats if one.load]
    under = f"; under load: {'; '.join(loaded[:_NAMED])}" if loaded else ""
    return f"fewer than {FEWEST_RUNS} interleaved repeats of each{under}"


def common_rounds(one: Variant, other: Variant) -> tuple[tuple[float, float], ...]:
    """Rates of the two by round, of the rounds that both ran the same steps in and neither under load."""
    theirs = {(repeat.round, repeat.steps): repeat for repeat in other.repeats if not repeat.load}
    mine = [(repeat, theirs.get((repeat.round, repeat.steps))) for repeat in one.repeats if not repeat.load]
    return tuple((repeat.tokens_per_s, match.tokens_per_s) for repeat, match in mine if match is not None)


def _over_rounds(quantity: Quantity, one: Variant, other: Variant) -> Margin:
    """The margin over the rounds; of a cost, at the price of each."""
    rounds = common_rounds(one, other)
    if quantity.section != COST:
        return change_over_rounds(rounds)
    mine, theirs = one.rent.usd_per_hour or 0.0, other.rent.usd_per_hour or 0.0
    return change_over_rounds([(mine / ours, theirs / others) for ours, others in rounds]) if mine and theirs else Margin(0.0)


def timed_once(quantity: Quantity) -> bool:
    """Whether a quantity is what the time of one training gave: it varies with the machine from run to run."""
    return quantity.section != SERVED and quantity.aspect in ("speed", "cost") and quantity.better != NEITHER


def smallest(quantity: Quantity, matters: MattersSpec) -> tuple[float, str]:
    """The smallest difference of a quantity that matters, as its margins are given, and in words."""
    if quantity.key == LOSS:
        return matters.loss, f"{matters.loss:g} nats"
    if quantity.share:
        return matters.pass_at_k / 100, f"{matters.pass_at_k:g} points"
    percent = matters.usd if quantity.unit == "USD" else matters.speed
    return percent / 100, f"{percent:g}%"


def _verdict(margin: Margin, size: float) -> str:
    """Whether a margin is shown, and large enough to matter.

    What is below the smallest difference that matters is equal, unless its interval reaches beyond that: then it may be anything.
    """
    ends = (margin.value, margin.value) if margin.low is None or margin.high is None else (margin.low, margin.high)
    small = abs(margin.value) < size or not margin.value
    if small and (margin.shown or max(abs(end) for end in ends) <= size):
        return EQUAL
    if margin.shown is None:
        return EQUAL if small else SINGLE
    convincing = margin.shown and (margin.p_value is None or margin.p_value < _LEVEL)
    return SHOWN if convincing else UNDECIDED


def absolute(quantity: Quantity, one: str, other: str) -> Margin:
    """How far two losses are apart; what each is, is exact."""
    return Margin(quantity.estimates[one].value - quantity.estimates[other].value, relative=False, unit="nats")


def margin_of(quantity: Quantity, one: Variant, other: Variant) -> Margin:
    """How far `one` is from `other`: problem by problem where both answered the same ones, else from their own intervals.

    A rate is compared round by round where both were repeated together, and has no interval where they were not.
    """
    mine, theirs = quantity.estimates[one.name], quantity.estimates[other.name]
    if not quantity.share:
        if timed_once(quantity):
            repeated = quantity.key in _REPEATED and len(common_rounds(one, other)) >= FEWEST_RUNS
            return _over_rounds(quantity, one, other) if repeated else Margin(mine.value / theirs.value - 1 if theirs.value else 0.0)
        return relative_change(mine, theirs) if theirs.value else Margin(0.0)
    k = int(quantity.key.partition("/")[0].rpartition("_")[2])
    ours, others = one.answers.get(quantity.split, {}), other.answers.get(quantity.split, {})
    if ours and ours.keys() == others.keys():
        paired = compare_counts(ours, others, k)
        return Margin(paired.difference, paired.low, paired.high, relative=False, method=paired.test, p_value=paired.p_value)
    return difference(mine, theirs)
