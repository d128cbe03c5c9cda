"""Which points of a plan get a compiler's or a trace's figures, and from where: kept answers for all, new ones for a few.

Decides; how a step is compiled or traced is known to those that it names (`compiled.py`, `traced.py`).
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from crossmesh.hardware.devices import Tpu
from crossmesh.plan.figures import Compiled
from crossmesh.plan.point import TrainingPoint
from crossmesh.plan.training.forecast import Forecast, pareto

BEST = 2
"""TPU points of a sweep that are compiled with `plan.compile=auto`."""


class Compiler(Protocol):
    """Something that knows what the very step of a point needs: XLA for TPUs, a trace for GPUs."""

    def serves(self, point: TrainingPoint) -> bool:
        """Whether it is the one for this point's backend and kind of device."""

    def find(self, point: TrainingPoint) -> Compiled | None:
        """The kept answer, None where there is none. Takes no time."""

    def missing(self) -> str:
        """What to do to have it, as one sentence; empty when it is installed."""

    def compile(self, point: TrainingPoint) -> Compiled:
        """Ask now, in a worker, with progress, and keep the answer. Takes minutes. Raises `CrossmeshError`."""


def worth_compiling(mode: str, planned: Sequence[Forecast], served: Callable[[TrainingPoint], bool]) -> list[Forecast]:
    """Of the planned points those that are to be compiled or traced now; a stale answer is none only with `always`.

    Args:
        mode: `plan.compile`.
        planned: all points of the plan.
        served: whether there is a compiler for a point's hardware.
    """
    if mode == "never":
        return []
    possible = [one for one in planned if one.figures and served(one.point)]
    if mode == "always":
        return [one for one in possible if one.uncompiled or _stale(one)]
    return [one for one in (best_on_tpu(possible) if len(planned) > 1 else possible) if one.uncompiled]


def _stale(one: Forecast) -> bool:
    return bool(one.figures and one.figures.compiled and one.figures.compiled.warnings)


def best_on_tpu(planned: Sequence[Forecast]) -> list[Forecast]:
    """The `BEST` TPU points that fit: those of their Pareto front first, the cheapest per token first."""
    fitting = [one for one in planned if one.fits and isinstance(one.point.slice.device, Tpu)]
    front = {id(one) for one in pareto(fitting)}

    def rank(one: Forecast) -> tuple[bool, float, float]:
        usd = one.usd_per_million_tokens
        return id(one) not in front, float("inf") if usd is None else usd, -(one.tokens_per_s or 0.0)

    return sorted(fitting, key=rank)[:BEST]
