"""What one invocation of a job was asked to do: a checked spec and the job's own keys."""

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.mistakes import translate, unknown_key
from crossmesh.config.schema import known_keys, names, to_dataclass
from crossmesh.errors import require_choice

Keys = TypeVar("Keys")


@dataclass(frozen=True)
class JobKeys:
    """Keys that every job has; a job's own dataclass adds to them."""

    output: str = "table"
    """`table` for a person; `json` makes the last line of stdout one JSON object with the result."""

    def __post_init__(self) -> None:
        """Check the form."""
        require_choice("output", self.output, ("table", "json"))


@dataclass(frozen=True)
class Job(Generic[Keys]):
    """What one invocation of a job was asked to do."""

    spec: ExperimentSpec
    keys: Keys
    """The job's own keys."""


def build_job(config: DictConfig, keys: type[Keys], conf: Path) -> Job[Keys]:
    """Turn a composed configuration into a checked `Job`; `InputError` when something in it cannot be."""
    try:
        values = {str(key): value for key, value in dict(OmegaConf.to_container(config, resolve=True, throw_on_missing=True)).items()}  # type: ignore[arg-type]
        of_spec, of_job = names(ExperimentSpec), names(keys)
        for key in values:
            if key not in (*of_spec, *of_job):
                raise unknown_key(key, known_keys(keys, conf))
        spec = to_dataclass({key: values[key] for key in of_spec}, ExperimentSpec)
        return Job(spec, to_dataclass({key: values[key] for key in of_job}, keys))
    except OmegaConfBaseException as error:
        raise translate(error, keys, conf) from error
