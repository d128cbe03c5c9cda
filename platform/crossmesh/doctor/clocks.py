"""How far the clock of another machine is from this one's, with its bound, from a few questions. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from crossmesh.doctor.finding import Finding, fault, ok

SKEW_S = 1.0
"""Synchronized machines are milliseconds apart. Leases do not depend on the clock (`trial/lease.py`); the order of what several nodes
write, and of tracked runs, does, and so do certificates and access tokens of buckets, which allow for minutes."""


@dataclass(frozen=True)
class ClockSample:
    """One question for the time: asked and answered by this clock, and what the other clock said between."""

    asked: float
    said: float
    answered: float


def skew(answers: Sequence[ClockSample]) -> tuple[float, float]:
    """Seconds by which the other clock is ahead, and by how much that may be wrong: half of the fastest question's round trip."""
    best = min(answers, key=lambda one: one.answered - one.asked)
    return best.said - (best.asked + best.answered) / 2, (best.answered - best.asked) / 2


def skew_finding(answers: Sequence[ClockSample]) -> Finding:
    """What the measured skew means."""
    seconds, bound = skew(answers)
    found = f"{abs(seconds) * 1e3:.1f} ms {'ahead of' if seconds >= 0 else 'behind'} this machine's, to within {bound * 1e3:.1f} ms"
    if abs(seconds) - bound <= SKEW_S:
        return ok("clock, skew", found)
    return fault(
        "clock, skew", f"{found}; {SKEW_S:g} s is allowed", "sudo timedatectl set-ntp true    # on both, or: sudo chronyc makestep"
    )
