"""What `jobs/tune.py` searches: a space of settings, how it is searched, by which metric, and when a trial is stopped early."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from crossmesh.errors import InputError, require, require_choice
from crossmesh.spec.sweep import SweepKeys

SEARCHES = ("grid", "random", "optuna")
METRICS = {"loss": "min", "tokens_per_s": "max"}
"""Of a training run, and which end of it is good."""
_RANGE = {"low", "high", "log", "whole"}


@dataclass(frozen=True)
class TuneSpec:
    """A search."""

    search: str = "random"
    """`grid`: every combination of lists; `random`: samples; `optuna`: samples that follow from what earlier trials came to (TPE)."""
    samples: int = 16
    """Trials of `random` and `optuna`."""
    seed: int = 0
    metric: str = "loss"
    """`loss` of the last step, or `tokens_per_s`."""
    scheduler: str = "none"
    """`asha`: trials that are behind others at the same step are stopped (asynchronous successive halving); `none`: all run to the end."""
    grace_steps: int = 10
    """With `asha`: steps that every trial gets."""
    reduction: float = 3.0
    """With `asha`: of each rung, one in so many goes on."""
    space: dict[str, Any] = field(default_factory=dict)
    """By key of the spec: a list of values, or `{low: 1e-4, high: 1e-2}` with `log: true` or `whole: true`."""

    def __post_init__(self) -> None:
        """Check the search."""
        require_choice("tune.search", self.search, SEARCHES)
        require_choice("tune.metric", self.metric, METRICS)
        require_choice("tune.scheduler", self.scheduler, ("none", "asha"))
        require(self.samples > 0, "tune.samples", self.samples, "a positive number")
        require(self.grace_steps > 0, "tune.grace_steps", self.grace_steps, "a positive number")
        require(self.reduction > 1, "tune.reduction", self.reduction, "a number above 1")
        for key, values in self.space.items():
            self._check(key, values)

    def _check(self, key: str, values: Any) -> None:
        if isinstance(values, list) and values:
            return
        possible = isinstance(values, Mapping) and {"low", "high"} <= set(values) <= _RANGE
        if not possible or values["low"] >= values["high"] or (values.get("log") and values["low"] <= 0):
            raise InputError(
                f"tune.space: {key}: {values!r} is not possible. Allowed: a list of values, or low and high, with log or whole: "
                "{low: 1e-4, high: 1e-2, log: true}."
            )
        if self.search == "grid":
            raise InputError(f"tune.space: {key}: {values!r} is a range, and tune.search=grid tries every value. Give a list.")


@dataclass(frozen=True)
class TuneKeys(SweepKeys):
    """Keys of a job that searches."""

    tune: TuneSpec = field(default_factory=TuneSpec)
    force: bool = False
    """Train again what is done."""
