"""The keys of dataclasses as configs that Hydra composes, and composed values as dataclasses again."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, ListConfig, OmegaConf

from crossmesh.compat.omegaconf_nodes import node_of
from crossmesh.config.experiment import ExperimentSpec

Keys = TypeVar("Keys")


def names(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass."""
    return tuple(f.name for f in fields(kind))


def schema(kind: type[Any]) -> DictConfig:
    """Return the defaults of a dataclass as a config whose root takes further keys at composition but whose groups are typed."""
    structured = _writable(OmegaConf.structured(kind))
    return OmegaConf.create({key: node_of(structured, key) for key in names(kind)})


class Builder(Generic[Keys]):
    """Builds a dataclass of values; a field that was built of the same values before is not built again."""

    def __init__(self, kind: type[Keys]) -> None:
        """Prepare for `kind`."""
        self._kind = kind
        self._schema = schema(kind)
        self._built: dict[tuple[str, str], Any] = {}

    def __call__(self, values: Mapping[str, Any]) -> Keys:
        """Build it; OmegaConf's errors where a value has the wrong type or a key does not exist."""
        if unknown := [name for name in values if name not in self._schema]:
            OmegaConf.merge(_writable(OmegaConf.structured(self._kind)), {unknown[0]: values[unknown[0]]})  # Raises in OmegaConf's words.
        return self._kind(**{name: self._field(name, value) for name, value in values.items()})

    def _field(self, name: str, value: Any) -> Any:
        key = (name, repr(value))
        if key not in self._built:
            typed = OmegaConf.create({name: node_of(self._schema, name)})
            self._built[key] = OmegaConf.to_object(OmegaConf.merge(typed, {name: value}))[name]  # type: ignore[index,call-overload]
        return self._built[key]


def to_dataclass(values: Mapping[Any, Any], kind: type[Keys]) -> Keys:
    """Build a dataclass of composed values; OmegaConf's errors where a value has the wrong type."""
    return Builder(kind)(values)


def known_keys(keys: type[Any], conf: Path) -> tuple[str, ...]:
    """Return every dotted key that an override may name, and every config group."""
    groups = [folder.name for folder in sorted(conf.iterdir()) if folder.name != "job" and any(folder.glob("*.yaml"))]
    return tuple(dict.fromkeys([*_dotted(schema(ExperimentSpec)), *_dotted(schema(keys)), *groups]))


def type_of(key: str, keys: type[Any]) -> Any:
    """Return the type that a dotted key has in the spec or in the job's own keys; None for a key that does not exist."""
    hints = {**get_type_hints(ExperimentSpec), **get_type_hints(keys)}
    kind: Any = None
    for name in key.split("."):
        if get_origin(kind) is dict:
            return get_args(kind)[1]
        kind = hints.get(name)
        hints = get_type_hints(kind) if is_dataclass(kind) else {}
    return kind


def _writable(config: Any) -> Any:
    """Frozen dataclasses make read-only configs; composition has to write to them before they become frozen."""
    if isinstance(config, DictConfig | ListConfig):
        OmegaConf.set_readonly(config, False)
    if isinstance(config, DictConfig):
        if OmegaConf.get_type(config) is dict:
            OmegaConf.set_struct(config, False)  # Its keys are the user's, not a schema's.
        for key in config:
            _writable(node_of(config, key))
    return config


def _dotted(config: DictConfig, prefix: str = "") -> Iterator[str]:
    for key in config:
        name = f"{prefix}{key!s}"
        yield name
        node = node_of(config, key)
        if isinstance(node, DictConfig):
            yield from _dotted(node, f"{name}.")
