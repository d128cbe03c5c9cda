"""What a sweep (`-m`) is asked for beside its points: its budget, retries, and how many trials at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.job import JobKeys, build_job
from crossmesh.config.mistakes import translate
from crossmesh.errors import InputError, require


@dataclass(frozen=True)
class SweepSpec:
    """A sweep as a whole; nothing of it is part of what its trials are."""

    max_usd: float = 0.0
    """Budget of all trials together, at the catalogue's price for the time that they run; 0: none."""
    max_hours: float = 0.0
    """The same in hours: the sum of the times that trials run, however many at once; 0: none."""
    retries: int = 1
    """How often a trial that failed is tried again, in all starts of the sweep together; one that diverged is not: it would again."""
    at_once: int = 0
    """With `hydra/launcher=ray`: the most trials at once; 0: as many as the cluster has room for."""

    def __post_init__(self) -> None:
        """Check the limits."""
        for name in ("max_usd", "max_hours", "retries", "at_once"):
            require(getattr(self, name) >= 0, f"sweep.{name}", getattr(self, name), "0 or a positive number")


@dataclass(frozen=True)
class SweepKeys(JobKeys):
    """Keys of a job that can be swept."""

    sweep: SweepSpec = field(default_factory=SweepSpec)


def labels_of(overrides: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """For each point the overrides that not all of them share."""
    shared = set(overrides[0]).intersection(*overrides[1:]) if len(overrides) > 1 else set(overrides[0]) if overrides else set()
    return [tuple(one for one in own if one not in shared) for own in overrides]


def given_overrides() -> tuple[str, ...]:
    """What the command line of this job sets."""
    return tuple(HydraConfig.get().overrides.task)


def compose_point(verb: str, overrides: Sequence[str], keys: type[Any], conf: Path) -> ExperimentSpec | InputError:
    """The spec that this job's command line comes to with `overrides` behind it, or why it cannot be; within `run_job` only."""
    try:
        return build_job(hydra.compose(f"job/{verb}", [*given_overrides(), *overrides]), keys, conf).spec
    except InputError as error:
        return error
    except (HydraException, OmegaConfBaseException) as error:
        return translate(error, keys, conf)
