"""What `crossmesh tune` searches: a space of settings, how it is searched, by which metric, and when a trial is stopped early."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from crossmesh.config.sweep import SweepKeys
from crossmesh.errors import InputError, require, require_choice

SEARCHES = ("grid", "random", "optuna")
METRICS = {"loss": "min", "tokens_per_s": "max"}
"""Of a training run, and which end of it is good."""
_WHILE_TRAINING = (
    "optim.learning_rate",
    "optim.final_fraction",
    "optim.weight_decay",
    "optim.beta1",
    "optim.beta2",
    "optim.epsilon",
    "optim.clip_norm",
    "lora.dropout",
)
"""Keys that leave the state of training and the order of the data as they are."""
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
    """`asha`: trials that are behind others at the same step are stopped (asynchronous successive halving); `pbt`: those that are behind go
    on from the state of those ahead, with varied settings (population based training); `none`: all run to the end."""
    grace_steps: int = 10
    """With `asha`: steps that every trial gets."""
    reduction: float = 3.0
    """With `asha`: of each rung, one in so many goes on."""
    population: int = 4
    """With `pbt`, in place of `samples`: trials that train side by side."""
    perturb_steps: int = 10
    """With `pbt`: steps between two comparisons."""
    quantile: float = 0.25
    """With `pbt`: the share that is replaced, by as many of the best."""
    space: dict[str, Any] = field(default_factory=dict)
    """By key of the spec: a list of values, or `{low: 1e-4, high: 1e-2}` with `log: true` or `whole: true`."""

    def __post_init__(self) -> None:
        """Check the search."""
        require_choice("tune.search", self.search, SEARCHES)
        require_choice("tune.metric", self.metric, METRICS)
        require_choice("tune.scheduler", self.scheduler, ("none", "asha", "pbt"))
        require(self.samples > 0, "tune.samples", self.samples, "a positive number")
        require(self.grace_steps > 0, "tune.grace_steps", self.grace_steps, "a positive number")
        require(self.reduction > 1, "tune.reduction", self.reduction, "a number above 1")
        require(self.population > 1, "tune.population", self.population, "two or more")
        require(self.perturb_steps > 0, "tune.perturb_steps", self.perturb_steps, "a positive number")
        require(0 < self.quantile <= 0.5, "tune.quantile", self.quantile, "above 0, up to 0.5")
        for key, values in self.space.items():
            self._check(key, values)
        if self.scheduler == "pbt":
            self._check_population()

    def _check_population(self) -> None:
        """Check that a trial with one value of the space can go on from the state of a trial with another."""
        if self.search != "random" or self.metric != "loss":
            raise InputError(
                f"tune.scheduler=pbt with tune.search={self.search} and tune.metric={self.metric}: its first generation is drawn at random "
                "and it goes by the loss. Leave both out."
            )
        for key in self.space:
            if key not in _WHILE_TRAINING:
                raise InputError(
                    f"tune.space: {key} cannot change while a trial trains, which tune.scheduler=pbt does. Allowed: "
                    f"{', '.join(_WHILE_TRAINING)}. Search it with scheduler=asha."
                )

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
