"""What may be said of the best of a search: by how much, or that the difference is too small to matter. Pure."""

from collections.abc import Sequence

from crossmesh.spec.verdicts import MattersSpec
from crossmesh.sweep.state import Point

_NAMED = 5
"""Most trials that are named as equal."""


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
    named = ", ".join(one.label or one.key for one in equal[:_NAMED])
    more = f" and {len(equal) - _NAMED} more" if len(equal) > _NAMED else ""
    if len(equal) > 1:
        return f"no difference that matters: equal within {_amount(_smallest(metric, matters), metric)}: {named}{more}"
    if len(ranked) == 1:
        return f"the only one that ran to its end: {named}"
    second = ranked[1].label or ranked[1].key
    by = _amount(_gap(ranked[0], ranked[1], metric), metric)
    if metric == "loss":
        return f"best of those that ran to their end: {named}, lower by {by} than {second}; one run each"
    return f"not decided, one run each; the highest is {named}, by {by} over {second}. Repeats decide: jobs/compare.py sweep=ID repeat=3"


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
