"""Which variant is best in which quantity, by how much, and whether that is more than chance: within what may be compared, never across.

Pure. What may be compared is `comparable`'s verdict.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from crossmesh.evaluate.paired import compare_counts
from crossmesh.report.comparable import Comparison
from crossmesh.report.estimates import Margin, difference, relative_change
from crossmesh.report.quantity import EVALUATION, HIGHER, NEITHER, Quantity
from crossmesh.report.variants import Results, Variant

EQUAL, UNDECIDED, SHOWN, SINGLE = "equal", "no difference shown", "shown", "one measurement each"


@dataclass(frozen=True)
class Winner:
    """The best of one class of comparable variants in one quantity."""

    quantity: Quantity
    names: tuple[str, ...]
    """All that were compared."""
    best: str
    second: str
    margin: Margin
    """Of the best over the second."""
    verdict: str
    """`EQUAL`, `UNDECIDED`, `SHOWN`, or `SINGLE` where there is no interval to judge by."""

    @property
    def words(self) -> str:
        """By how much the best one leads: `12.3% more (11.0 to 13.5)`, `5.0 points (-1.2 to +11.0), p = 0.04`."""
        if self.verdict == EQUAL:
            return EQUAL
        if not self.margin.relative:
            return self.margin.words + (f", p = {self.margin.p_value:.2g}" if self.margin.p_value is not None else "")
        ends = [] if self.margin.low is None or self.margin.high is None else [self.margin.low, self.margin.high]
        if self.quantity.better == HIGHER:
            return _leads(self.margin.value, ends, "more")
        return _leads(-self.margin.value, [-end for end in reversed(ends)], "less")

    @property
    def sentence(self) -> str:
        """Who leads by how much, and whether that is more than chance."""
        if self.verdict == EQUAL:
            return EQUAL
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
        ranked += [winner for names in classes if (winner := _winner(quantity, names, variants))]
    return tuple(ranked)


def _classes(quantity: Quantity, comparison: Comparison) -> tuple[tuple[str, ...], ...]:
    """Losses are compared across how models were examined afterwards; answers are not."""
    aspect = "speed" if quantity.aspect == "quality" and quantity.section != EVALUATION else quantity.aspect
    return comparison.gates[aspect].classes


def _winner(quantity: Quantity, names: list[str], variants: Mapping[str, Variant]) -> Winner | None:
    sign = -1 if quantity.better == HIGHER else 1
    finite = [name for name in names if quantity.estimates[name].value == quantity.estimates[name].value]
    if len(finite) < 2:
        return None
    best, second = sorted(finite, key=lambda name: sign * quantity.estimates[name].value)[:2]
    margin = margin_of(quantity, variants[best], variants[second])
    if quantity.cells[best].text == quantity.cells[second].text:
        verdict = EQUAL
    elif margin.shown is None:
        verdict = SINGLE
    else:
        verdict = SHOWN if margin.shown else UNDECIDED
    return Winner(quantity, tuple(finite), best, second, margin, verdict)


def margin_of(quantity: Quantity, one: Variant, other: Variant) -> Margin:
    """How far `one` is from `other`: problem by problem where both answered the same ones, else from their own intervals."""
    mine, theirs = quantity.estimates[one.name], quantity.estimates[other.name]
    if not quantity.share:
        return relative_change(mine, theirs) if theirs.value else Margin(0.0)
    k = int(quantity.key.partition("/")[0].rpartition("_")[2])
    ours, others = one.answers.get(quantity.split, {}), other.answers.get(quantity.split, {})
    if ours and ours.keys() == others.keys():
        paired = compare_counts(ours, others, k)
        return Margin(paired.difference, paired.low, paired.high, relative=False, method=paired.test, p_value=paired.p_value)
    return difference(mine, theirs)
