"""Figures of a training step and where they come from. The model of this room is one source; a compiler's or a trace's is another.

A source is a function from a point to its figures, or to None where it has none. The first of a plan's sources that has some counts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crossmesh.plan.efficiency import efficiency
from crossmesh.plan.memory import training_memory
from crossmesh.plan.point import Point
from crossmesh.plan.roofline import lower_bound_s, phases

MODELLED = "modelled"


@dataclass(frozen=True)
class Figures:
    """Memory and time of one optimizer step."""

    source: str
    """`compiled`, `modelled`, `published` or `measured`."""
    hbm_bytes: float
    """Per chip, at the peak."""
    memory: dict[str, float]
    """The same by kind, as far as the source tells kinds apart."""
    step_s: float
    phases: dict[str, float]
    """The same by phase, as far as the source tells phases apart."""
    limiter: str
    bound_s: float
    """Physical lower bound of a step."""


Source = Callable[[Point], Figures | None]


def modelled(point: Point) -> Figures:
    """Figures of this room's own model."""
    memory, timed = training_memory(point), phases(point, efficiency(point.slice.device))
    return Figures(MODELLED, memory.total, memory.kinds, timed.total, timed.seconds, timed.limiter, lower_bound_s(point))


def figures(point: Point, sources: Sequence[Source] = (modelled,)) -> Figures:
    """Those of the first of `sources` that has some; the model always has."""
    return next((found for source in sources if (found := source(point)) is not None), None) or modelled(point)
