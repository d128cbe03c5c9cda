"""What follows from where a sweep stands: what is tried again, when the budget is reached, what has room to start, the exit code.

Pure decisions over values; nothing is started here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crossmesh.config.sweep import SweepSpec
from crossmesh.errors import BudgetReachedError, CrossmeshError, InputError, RejectedError
from crossmesh.sweep.state import FAILED, Point, Spent

_ORDER = (BudgetReachedError.exit_code, CrossmeshError.exit_code, RejectedError.exit_code, InputError.exit_code, 0)
"""From the worst: what is not done yet, what broke, what cannot be."""


@dataclass(frozen=True)
class Need:
    """What a trial needs to itself while it runs."""

    kind: str
    """What is counted: `CPU`, a kind of GPU node, the first hosts of a kind of TPU slice."""
    amount: float


def over_budget(spent: Spent, limits: SweepSpec) -> str:
    """Why nothing more may be spent; empty while something may."""
    if limits.max_usd and spent.usd >= limits.max_usd:
        return f"The trials of the sweep have cost {spent.usd:.2f} USD, which reaches sweep.max_usd={limits.max_usd:g}."
    if limits.max_hours and spent.hours >= limits.max_hours:
        return f"The trials of the sweep have run {spent.hours:.2f} hours together, which reaches sweep.max_hours={limits.max_hours:g}."
    return ""


def try_again(point: Point, limits: SweepSpec) -> bool:
    """Whether a point that failed is started again: not one that diverged, and no more than `sweep.retries` times."""
    return point.state == FAILED and not point.diverged and point.tries <= limits.retries


def startable(waiting: Sequence[Need], running: Sequence[Need], room: Mapping[str, float], at_once: int) -> list[int]:
    """Which of those that wait are started now, by their place, in order.

    Args:
        waiting: what each needs.
        running: what is in use.
        room: what the cluster has of each kind. One trial of a kind is started whatever there is: the cluster may grow to it.
        at_once: the most that run together; 0: no limit.
    """
    used: dict[str, float] = {}
    for need in running:
        used[need.kind] = used.get(need.kind, 0.0) + need.amount
    found: list[int] = []
    for place, need in enumerate(waiting):
        if at_once and len(running) + len(found) >= at_once:
            break
        in_use = used.get(need.kind, 0.0)
        if not in_use or in_use + need.amount <= room.get(need.kind, 0.0):
            found.append(place)
            used[need.kind] = in_use + need.amount
    return found


def exit_code(points: Sequence[Point]) -> int:
    """Of the job: that of its worst point."""
    codes = {point.exit_code for point in points}
    return next(code for code in _ORDER if code in codes or code == 0)
