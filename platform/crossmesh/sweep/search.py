"""Where the points of an adaptive search come from, and which trials it stops: Ray Tune's searchers and schedulers, asked as libraries.

The trials are run by `driver.py`, as those of any sweep. `ray.tune` is imported when a search begins: that takes seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Protocol

from crossmesh.config.command_line import value_text
from crossmesh.config.tune import METRICS, TuneSpec
from crossmesh.errors import InputError
from crossmesh.sweep.state import DONE, EARLY, FAILED, REJECTED, SKIPPED, Point

ENDED = (DONE, SKIPPED, EARLY, FAILED, REJECTED)
"""States after which a trial says no more."""
Settings = dict[str, Any]


class Search(Protocol):
    """An adaptive search."""

    def more(self, points: Sequence[Point]) -> tuple[str, ...] | None:
        """What sets the next point apart, given those there are; None when there is none (now)."""

    def behind(self, point: Point, steps: Sequence[tuple[int, float]]) -> bool:
        """Whether a running trial is to be stopped, after these further (step, value) of it."""

    def ranked(self, points: Sequence[Point]) -> tuple[Point, ...]:
        """Those that ran to their end and can be held against each other, the best first."""


@dataclass(frozen=True)
class _Stand:
    """What Ray Tune's scheduler needs of a trial."""

    trial_id: str


class TuneSearch:
    """The search that a `TuneSpec` asks for, over training runs of `steps` steps."""

    def __init__(self, tune: TuneSpec, steps: int) -> None:
        self._tune = tune
        self._mode = METRICS[tune.metric]
        self._told: set[str] = set()
        self._optuna: Any = None
        self._suggested: set[str] = set()
        self._given = [] if tune.search == "optuna" else _variants(tune)
        self._scheduler = _asha(tune, self._mode, steps) if tune.scheduler == "asha" else None
        self._known: set[str] = set()

    def more(self, points: Sequence[Point]) -> tuple[str, ...] | None:
        """As `Search`. Points are numbered in the order in which they were suggested, also those of earlier starts."""
        index = len(points)
        if self._tune.search != "optuna":
            return overrides_of(self._given[index], self._tune.space) if index < len(self._given) else None
        if index >= self._tune.samples:
            return None
        if self._optuna is None:  # Begun anew it must not draw the first samples again.
            self._optuna = _optuna(self._tune, self._mode, self._tune.seed + index)
        self._tell(points)
        self._suggested.add(str(index))
        return overrides_of(self._optuna.suggest(str(index)), self._tune.space)

    def behind(self, point: Point, steps: Sequence[tuple[int, float]]) -> bool:
        """As `Search`."""
        if self._scheduler is None:
            return False
        trial = _Stand(point.key)
        if point.key not in self._known:
            self._known.add(point.key)
            self._scheduler.on_trial_add(None, trial)
        return any(self._scheduler.on_trial_result(None, trial, {"step": step, "value": value}) == "STOP" for step, value in steps)

    def ranked(self, points: Sequence[Point]) -> tuple[Point, ...]:
        """As `Search`."""
        values = [(self._value(point), point) for point in points if point.state in (DONE, SKIPPED)]
        known = [(value, point) for value, point in values if value is not None and isfinite(value)]
        return tuple(point for _, point in sorted(known, key=lambda one: one[0], reverse=self._mode == "max"))

    def _value(self, point: Point) -> float | None:
        return point.loss if self._tune.metric == "loss" else point.tokens_per_s

    def _tell(self, points: Sequence[Point]) -> None:
        """Let Optuna know what has ended since; of an earlier start all of it."""
        for index, point in enumerate(points):
            if point.state not in ENDED or point.key in self._told:
                continue
            self._told.add(point.key)
            value = self._value(point)
            good = point.state in (DONE, SKIPPED, EARLY) and value is not None
            if str(index) in self._suggested:
                self._optuna.on_trial_complete(str(index), {"value": value} if good else None, error=not good)
            elif good:
                self._optuna.add_evaluated_point(settings_of(point.overrides, self._tune.space), value)


def overrides_of(settings: Mapping[str, Any], space: Mapping[str, Any]) -> tuple[str, ...]:
    """Write settings as a command line does: values of a list as they stand in it, what was drawn from a range to six digits."""
    return tuple(f"{key}={_drawn(value) if isinstance(space.get(key), Mapping) else value_text(value)}" for key, value in settings.items())


def settings_of(overrides: Sequence[str], space: Mapping[str, Any]) -> Settings:
    """The values of `space` that a command line says: those of a list as they stand in it."""
    found: Settings = {}
    for override in overrides:
        key, _, text = override.partition("=")
        if key in space:
            values = space[key]
            if isinstance(values, list):
                found[key] = next(value for value in values if value_text(value) == text)
            else:  # The text is rounded.
                found[key] = int(text) if values.get("whole") else min(max(float(text), values["low"]), values["high"])
    return found


def _drawn(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _variants(tune: TuneSpec) -> list[Settings]:
    """All points of a grid, or the samples of a random search: the same for the same seed, the first few whatever their number."""
    from ray import tune as ray_tune
    from ray.tune.search.variant_generator import generate_variants

    if tune.search == "grid":
        space: Settings = {key: ray_tune.grid_search(values) for key, values in tune.space.items()}
        return [dict(variant) for _, variant in generate_variants(space)]
    return samples(tune, tune.samples)


def samples(tune: TuneSpec, count: int) -> list[Settings]:
    """The first `count` random samples of the space: the same for the same seed, whatever `count`."""
    import numpy as np
    from ray.tune.search.variant_generator import generate_variants

    random = np.random.RandomState(tune.seed)
    drawn = (next(iter(generate_variants(domains(tune), random_state=random)))[1] for _ in range(count))
    return [{key: plain(value) for key, value in one.items()} for one in drawn]


def domains(tune: TuneSpec) -> Settings:
    """The space as Ray Tune's domains, by key."""
    return {key: _domain(values) for key, values in tune.space.items()}


def _domain(values: Any) -> Any:
    from ray import tune as ray_tune

    if isinstance(values, list):
        return ray_tune.choice(values)
    low, high, log = values["low"], values["high"], values.get("log", False)
    if values.get("whole"):
        return ray_tune.lograndint(int(low), int(high) + 1) if log else ray_tune.randint(int(low), int(high) + 1)
    return ray_tune.loguniform(low, high) if log else ray_tune.uniform(low, high)


def plain(value: Any) -> Any:
    """A value of Python for one of numpy."""
    return value.item() if hasattr(value, "item") else value


def _optuna(tune: TuneSpec, mode: str, seed: int) -> Any:
    try:
        import optuna
    except ImportError as error:
        raise InputError("tune.search=optuna needs the package optuna, which is not installed here. Use grid or random.") from error
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return OptunaSearch(OptunaSearch.convert_search_space(domains(tune)), metric="value", mode=mode, seed=seed)


def _asha(tune: TuneSpec, mode: str, steps: int) -> Any:
    from ray.tune.schedulers import AsyncHyperBandScheduler

    return AsyncHyperBandScheduler(
        time_attr="step",
        metric="value",
        mode=mode,
        max_t=steps,
        grace_period=min(tune.grace_steps, steps),
        reduction_factor=tune.reduction,
        stop_last_trials=False,
    )
