"""The points of a sweep (`-m`): what they share is composed once, and of each only what differs is built and checked."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar, get_origin

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.job import Job, build_job
from crossmesh.config.schema import Builder, known_keys, names, type_of
from crossmesh.errors import InputError

Keys = TypeVar("Keys")
_INTERPOLATION = "${"


@dataclass(frozen=True)
class SweptJob(Generic[Keys]):
    """One point of a sweep (`-m`)."""

    overrides: tuple[str, ...]
    """What the command line says for this point."""
    job: Job[Keys] | InputError
    """What it comes to, or why it cannot be."""


@dataclass(frozen=True)
class SweptJobs(Generic[Keys]):
    """The points of a sweep; each is composed when it is reached."""

    listed: tuple[tuple[str, ...], ...]
    """What the command line says for each."""
    launcher: str
    """The file of `hydra/launcher` that was chosen."""
    compose: Callable[[tuple[str, ...]], Job[Keys] | InputError]

    def __len__(self) -> int:
        """How many there are."""
        return len(self.listed)

    def __iter__(self) -> Iterator[SweptJob[Keys]]:
        """Compose one after another."""
        return (SweptJob(overrides, self.compose(overrides)) for overrides in self.listed)


class PointComposer(Generic[Keys]):
    """Composes the points of a sweep.

    An override that gives one key a value comes last in Hydra too, so it is put into what the others compose to, which is composed once.
    Where a config refers to other keys (`${...}`), Hydra composes each point whole, as it does to say what is wrong.
    """

    def __init__(self, loader: Any, config: DictConfig, keys: type[Keys], conf: Path) -> None:
        """Compose with Hydra's `loader`, on top of the `config` of the sweep."""
        self._loader, self._config, self._keys, self._conf = loader, config, keys, conf
        known = ((key, type_of(key, keys)) for key in known_keys(keys, conf))
        self._leaves = frozenset(key for key, kind in known if kind is not None and not is_dataclass(kind) and get_origin(kind) is not dict)
        self._spec, self._own = Builder(ExperimentSpec), Builder(keys)
        self._composed: dict[tuple[str, ...], Mapping[str, Any] | None] = {}

    def job(self, overrides: tuple[str, ...]) -> Job[Keys] | InputError:
        """Compose one point, or say why it cannot be. Hydra's and OmegaConf's errors where the command line is wrong."""
        values = [(text, self._value(text)) for text in overrides]
        try:
            shared = self._shared(tuple(text for text, value in values if value is None))
            if shared is not None:
                return self._build(_with(shared, [value for _, value in values if value is not None]))
        except InputError as error:
            return error
        except OmegaConfBaseException:
            pass  # Hydra says it in its own words, which `mistakes.py` knows.
        return self._alone(overrides)

    def _build(self, values: Mapping[str, Any]) -> Job[Keys]:
        spec = self._spec({name: values[name] for name in names(ExperimentSpec)})
        return Job(spec, self._own({name: values[name] for name in names(self._keys)}))

    def _alone(self, overrides: Sequence[str]) -> Job[Keys] | InputError:
        try:
            return build_job(self._load(overrides), self._keys, self._conf)
        except InputError as error:
            return error

    def _load(self, overrides: Sequence[str]) -> DictConfig:
        config: DictConfig = self._loader.load_sweep_config(self._config, list(overrides))
        with open_dict(config):
            del config["hydra"]
        return config

    def _shared(self, overrides: tuple[str, ...]) -> Mapping[str, Any] | None:
        """What these compose to; None where points on top of it have to be composed whole."""
        if overrides not in self._composed:
            self._composed[overrides] = self._plain(overrides)
        return self._composed[overrides]

    def _plain(self, overrides: tuple[str, ...]) -> Mapping[str, Any] | None:
        try:
            config = self._load(overrides)
            values = OmegaConf.to_container(config, resolve=False, throw_on_missing=True)
        except (HydraException, OmegaConfBaseException):
            return None
        known = {*names(ExperimentSpec), *names(self._keys)}
        if not isinstance(values, dict) or values.keys() - known or _INTERPOLATION in repr(values):
            return None
        return {str(name): value for name, value in values.items()}

    def _value(self, text: str) -> tuple[tuple[str, ...], Any] | None:
        """The key and value of an override that gives one key one value; None for groups, additions, deletions and maps."""
        override = _parsed(text)
        key = override.key_or_group
        plain = override.type is OverrideType.CHANGE and override.package is None and key in self._leaves
        if not plain or _INTERPOLATION in text:
            return None
        value = override.value()
        return None if isinstance(value, dict) else (tuple(key.split(".")), value)


def _with(values: Mapping[str, Any], changes: Sequence[tuple[tuple[str, ...], Any]]) -> Mapping[str, Any]:
    changed = dict(values)
    for (first, *rest), value in changes:
        changed[first] = _with(changed[first], [(tuple(rest), value)]) if rest else value
    return changed


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Override:
    return OverridesParser.create().parse_override(text)
