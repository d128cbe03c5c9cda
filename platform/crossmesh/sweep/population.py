"""Population based training: a population trains for some steps, the worst take over the state of the best and vary their settings.

After Jaderberg et al. 2017 (https://arxiv.org/abs/1711.09846), with the shares and factors that Ray Tune's scheduler has by default; that
one steers trials that Ray Tune runs itself, draws from the process's own random state and leaves the ranges of the space. Each member of
each generation is a trial of its own that begins with the last state of one before it, so whoever is killed goes on here too, and the run
of every trial says all of its past. A generation begins when the one before has ended: who is copied depends on nobody's speed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from crossmesh.config.tune import TuneSpec
from crossmesh.errors import InputError
from crossmesh.sweep.search import ENDED, Settings, domains, overrides_of, plain, samples, settings_of
from crossmesh.sweep.state import DONE, SKIPPED, Point

_RESAMPLED = 0.25
"""How often a setting is drawn anew; otherwise it is varied."""
_FACTORS = (0.8, 1.2)


class Population:
    """The search of a `TuneSpec` with `scheduler=pbt`, over training runs of `steps` steps. Points are numbered by generation."""

    def __init__(self, tune: TuneSpec, steps: int) -> None:
        """Raises `InputError` when the population would never be compared."""
        if tune.perturb_steps >= steps:
            raise InputError(
                f"tune.perturb_steps={tune.perturb_steps} with optim.steps={steps}: the population would never be compared. "
                f"Allowed: less than {steps}."
            )
        self._tune = tune
        self._ends = [*range(tune.perturb_steps, steps, tune.perturb_steps), steps]
        self._first = samples(tune, tune.population)

    def more(self, points: Sequence[Point]) -> tuple[str, ...] | None:
        """As `Search`."""
        size = self._tune.population
        generation, member = divmod(len(points), size)
        if generation == 0:
            return overrides_of({**self._first[member], "optim.stop_at": self._ends[0]}, self._tune.space)
        before = points[(generation - 1) * size : generation * size]
        if generation == len(self._ends) or any(point.state not in ENDED for point in before):
            return None
        ranked = sorted((place for place in range(size) if _ran(before[place])), key=lambda place: _loss(before[place]))
        if not ranked:
            return None
        random = np.random.RandomState([self._tune.seed, generation, member])
        count = max(1, int(np.ceil(size * self._tune.quantile)))
        behind = member not in ranked or member in ranked[max(1, len(ranked) - count) :]
        parent = before[random.choice(ranked[:count]) if behind else member]
        settings = settings_of(parent.overrides, self._tune.space)
        if behind:
            settings = self._varied(settings, random)
        return overrides_of(
            {**settings, "optim.stop_at": self._ends[generation], "checkpoint.resume_from": parent.run_id}, self._tune.space
        )

    def behind(self, point: Point, steps: Sequence[tuple[int, float]]) -> bool:  # noqa: ARG002 - every member runs to the generation's end
        """As `Search`."""
        return False

    def ranked(self, points: Sequence[Point]) -> tuple[Point, ...]:
        """As `Search`: of those that had all steps."""
        size = self._tune.population
        ended = [point for point in points[(len(self._ends) - 1) * size :] if _ran(point)]
        return tuple(sorted(ended, key=_loss))

    def _varied(self, settings: Settings, random: Any) -> Settings:
        """Draw each setting anew, or move it: within a list to a neighbour, within a range by a factor."""
        varied: Settings = {}
        for key, domain in domains(self._tune).items():
            value, values = settings[key], self._tune.space[key]
            if random.uniform() < _RESAMPLED:
                varied[key] = plain(domain.sample(random_state=random))
            elif isinstance(values, list):
                place = values.index(value) + random.choice([-1, 1])
                varied[key] = values[min(max(place, 0), len(values) - 1)]
            else:
                moved = min(max(value * random.choice(_FACTORS), values["low"]), values["high"])
                varied[key] = round(moved) if values.get("whole") else float(moved)
        return varied


def _ran(point: Point) -> bool:
    return point.state in (DONE, SKIPPED) and point.loss is not None


def _loss(point: Point) -> float:
    return float("inf") if point.loss is None else point.loss
