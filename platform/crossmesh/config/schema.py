"""The keys of dataclasses as configs that Hydra composes, and composed values as dataclasses again."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

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


def to_dataclass(values: dict[Any, Any], kind: type[Keys]) -> Keys:
    """Build a dataclass of composed values; OmegaConf's errors where a value has the wrong type."""
    return OmegaConf.to_object(OmegaConf.merge(_writable(OmegaConf.structured(kind)), values))  # type: ignore[return-value]


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
