"""What the numbers say: alike, better, faster, each as one answer with its reason. Pure; the gate is `comparable`.

A difference in pass@k is claimed only when the interval of the difference leaves zero out. Speed is one measurement a variant, so it is
given as a ratio without an interval, and says so.
"""

import math
from dataclasses import dataclass

from crossmesh.report.comparable import Comparison, Difference
from crossmesh.report.variants import Results, Score, Variant, split_name

GOOD, BAD, NEUTRAL = "good", "bad", "neutral"


@dataclass(frozen=True)
class Finding:
    """One question with its answer."""

    question: str
    answer: str
    reasons: tuple[str, ...]
    tone: str = NEUTRAL
    """`good`, `bad` or `neutral`."""


@dataclass(frozen=True)
class Gap:
    """A difference of two shares with its interval, all in -1 to 1."""

    value: float
    low: float
    high: float

    @property
    def shown(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0

    @property
    def words(self) -> str:
        """In percentage points."""
        return f"{100 * self.value:+.1f} points ({100 * self.low:+.1f} to {100 * self.high:+.1f})"


def gap(one: Score, other: Score) -> Gap:
    """Return `one` minus `other` with the interval that follows from their own (Newcombe 1998, method 10, doi:10.1002/sim.2779).

    It takes the two as independent. Both answered the same problems, which as a rule makes the true interval narrower.
    """
    value = one.value - other.value
    low = value - math.hypot(one.value - one.low, other.high - other.value)
    high = value + math.hypot(one.high - one.value, other.value - other.low)
    return Gap(value, max(-1.0, low), min(1.0, high))


def largest_loss_gap(variants: tuple[Variant, ...]) -> tuple[int, float] | None:
    """Return (step, difference) where the losses of trained variants are furthest apart, or None without common finite steps."""
    gaps = loss_gaps(variants)
    return max(gaps, key=lambda entry: entry[1]) if gaps else None


def loss_gaps(variants: tuple[Variant, ...]) -> tuple[tuple[int, float], ...]:
    """Return (step, largest minus smallest loss) of every step at which all trained variants have a finite loss."""
    curves = [dict(variant.training.losses) for variant in variants if variant.training is not None]
    if len(curves) < 2:
        return ()
    common = sorted(set.intersection(*(set(curve) for curve in curves)))
    losses = ((step, [curve[step] for curve in curves]) for step in common)
    return tuple((step, max(values) - min(values)) for step, values in losses if all(math.isfinite(value) for value in values))


def findings(results: Results, comparison: Comparison) -> tuple[Finding, Finding, Finding]:
    """Return the three answers of the first screen: are they alike, which is better, which is faster."""
    return alike(results, comparison), better(results, comparison), faster(results, comparison)


def alike(results: Results, comparison: Comparison) -> Finding:
    """Whether the runs may be compared, and what differs."""
    question = "Are they alike?"
    trained = results.trained
    if comparison.blocking:
        reasons = [f"{difference.scope} differs in {difference.key}." for difference in comparison.blocking[:3]]
        if len(comparison.blocking) > 3:
            reasons.append(f"{len(comparison.blocking) - 3} more differing keys are listed below.")
        return Finding(question, _blocked_answer(comparison), tuple(reasons), BAD)
    reasons = []
    if len(trained) > 1:
        reasons.append(f"{_and([v.name for v in trained])} have the same science record and were examined the same way.")
    else:
        reasons.append("All variants were examined the same way.")
    if comparison.subject:
        reasons.append(f"They differ in {_and([_named(difference) for difference in comparison.subject])}.")
    furthest = largest_loss_gap(trained)
    if furthest is not None:
        reasons.append(f"Step for step their losses are apart by at most {small(furthest[1])} nats (step {furthest[0]}).")
    if comparison.confounders:
        reasons.append(f"Confounders of speed: {_and([difference.key for difference in comparison.confounders])}.")
    return Finding(question, "Yes, comparable", tuple(reasons), GOOD)


def better(results: Results, comparison: Comparison) -> Finding:
    """Which variant solves more of the primary split, and by how much more than the base."""
    question = "Which is better?"
    if not comparison.quality:
        return Finding(question, "Not compared", ("The records differ, so a difference in quality would not be the backend's.",), BAD)
    split = results.splits[0] if results.splits else ""
    scored = [(v, score) for v in results.variants if (score := v.score(split)) is not None]
    references = [(v, score) for v, score in scored if v.training is None]
    ranked = sorted(((v, score) for v, score in scored if v.training is not None), key=lambda pair: -pair[1].value)
    if not ranked:
        return Finding(question, "Not measured", ("No trained variant was evaluated for pass@1.",))
    reasons = [f"{v.name} {score.value:.1%} of {score.problems} {split_name(split)} problems." for v, score in ranked]
    answer, tone = ranked[0][0].name, NEUTRAL
    if len(ranked) > 1:
        lead = gap(ranked[0][1], ranked[1][1])
        answer = f"{ranked[0][0].name}, by {100 * lead.value:.1f} points" if lead.shown else "No difference shown"
        reasons = [
            f"{_and([f'{v.name} {score.value:.1%}' for v, score in ranked])} of {ranked[0][1].problems} {split_name(split)} problems."
        ]
        reasons.append(f"{ranked[0][0].name} against {ranked[1][0].name}: {lead.words}.")
    for reference, base in references:
        gains = [(v, gap(score, base)) for v, score in ranked]
        beaten = all(gain.low > 0 for _, gain in gains)
        reasons += [f"{v.name} against {reference.name} ({base.value:.1%}): {gain.words}." for v, gain in gains]
        tone = GOOD if beaten else BAD
        if len(ranked) == 1:
            answer = f"{ranked[0][0].name}, by {100 * gains[0][1].value:.1f} points" if gains[0][1].shown else "No difference shown"
        elif beaten and answer == "No difference shown":
            answer = f"{answer}; {'both' if len(ranked) == 2 else 'all'} beat {reference.name}"
    return Finding(question, answer, tuple(reasons), tone)


def faster(results: Results, comparison: Comparison) -> Finding:
    """Which trained variant processes more real tokens a second."""
    question = "Which is faster?"
    if not comparison.speed:
        return Finding(
            question, "Not compared", ("The runs did not do the same training, so their speeds say nothing of the backend.",), BAD
        )
    rates = [(v.name, v.training.tokens_per_s, v.training.seconds) for v in results.trained if v.training is not None]
    ranked = sorted((rate for rate in rates if rate[1] > 0), key=lambda rate: -rate[1])
    if not ranked:
        return Finding(question, "Not measured", ("No variant was trained here.",))
    reasons = [f"{name} trained {rate:,.0f} real tokens/s, {seconds:,.0f} s in all." for name, rate, seconds in ranked]
    if len(ranked) == 1:
        return Finding(question, f"{ranked[0][1]:,.0f} tokens/s", tuple(reasons))
    reasons.append("One run each, so without an interval.")
    if comparison.confounders:
        reasons.append(f"May be due to {_and([difference.key for difference in comparison.confounders])} as well.")
    return Finding(question, f"{ranked[0][0]}, by {ranked[0][1] / ranked[1][1]:.2f}x", tuple(reasons))


def headline(comparison: Comparison) -> str:
    """Return the verdict in one sentence."""
    if comparison.comparable:
        count = len(comparison.confounders)
        extra = f", with {count} {'confounder' if count == 1 else 'confounders'} of speed" if count else ""
        return f"Comparable in quality and speed{extra}."
    keys = "1 key differs" if len(comparison.blocking) == 1 else f"{len(comparison.blocking)} keys differ"
    if comparison.speed:
        return f"Not comparable in quality, only in speed: {keys}."
    return f"Not comparable, neither in quality nor in speed: {keys}."


def _blocked_answer(comparison: Comparison) -> str:
    return "In speed only" if comparison.speed else "No, not comparable"


def _named(difference: Difference) -> str:
    values = " or ".join(dict.fromkeys(difference.values.values()))
    return f"{difference.key} ({values})"


def _and(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def small(value: float) -> str:
    """Return a small number without an exponent, two digits of it."""
    if 0 < value < 1e-6:
        return "less than 0.000001"
    decimals = max(2, 1 - math.floor(math.log10(value))) if value else 0
    return f"{value:.{min(decimals, 7)}f}"
