"""A JSON schema of every YAML under `conf/`, made from the dataclasses: types, descriptions, defaults and allowed values.

It is kept as `conf/schema.json`, where editors and the completion read it; `crossmesh schema` prints it. Allowed values are those that the
dataclasses themselves say when they refuse one.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from crossmesh.command.verbs import verbs
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.help import description
from crossmesh.config.job import JobKeys
from crossmesh.errors import ChoiceError, InputError
from crossmesh.hardware.catalogue import slices

_NOT_A_VALUE = "\0"
_INTERPOLATION = {"type": "string", "pattern": r"^\$\{.*\}$"}
_SIMPLE: Mapping[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_DEFAULTS = {
    "description": "Hydra: the files that this one is composed with, in order; _self_ is this one.",
    "type": "array",
    "items": {"type": ["string", "object"]},
}


def main() -> None:
    """Print the schema."""
    print(schema_text(), end="")  # noqa: T201


def schema_text() -> str:
    """The schema as the file that is kept."""
    return json.dumps(config_schema(), indent=1, ensure_ascii=False) + "\n"


def config_schema() -> dict[str, Any]:
    """Its root is a whole config, such as an experiment; `$defs` has each group, and each verb's own keys."""
    spec = _properties(ExperimentSpec)
    own = {verb: _properties(keys_of(verb)) for verb in verbs()}
    of_jobs: dict[str, Any] = {}
    for found in own.values():
        for key, one in found.items():
            of_jobs[key] = one if _type(of_jobs.get(key, one)) == _type(one) else {}
    groups = {name: _group(one) for name, one in {**of_jobs, **spec}.items() if one.get("type") == "object" and "properties" in one}
    beside = {"defaults": _DEFAULTS, "hydra": {"description": "Hydra's own settings.", "type": "object"}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "crossmesh",
        "type": "object",
        "properties": {**beside, **{name: _reference(name) if name in groups else one for name, one in {**of_jobs, **spec}.items()}},
        "additionalProperties": False,
        "$defs": {**groups, **{f"job {verb}": {"type": "object", "properties": found} for verb, found in own.items()}},
    }


def keys_of(verb: str) -> type[Any]:
    """The dataclass of a verb's own keys."""
    module = import_module(f"crossmesh.jobs.{verb}")
    found = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, JobKeys) and one is not JobKeys]
    return next((one for one in found if one.__module__ == module.__name__), found[0] if found else JobKeys)


def _group(one: Mapping[str, Any]) -> dict[str, Any]:
    """A file of a group, which may be composed of others."""
    return {**one, "properties": {"defaults": _DEFAULTS, **one["properties"]}}


def _reference(group: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{group}"}


def _type(one: Mapping[str, Any]) -> Any:
    return {key: value for key, value in one.items() if key not in ("description", "default")}


def _properties(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    found = {}
    for one in fields(kind):
        schema = _value(hints[one.name], *_allowed(kind, one.name, hints[one.name]))
        if kind.__name__ == "HardwareSpec" and one.name == "name":
            schema["examples"] = sorted(slices())
        text = description(one.name, kind) if not is_dataclass(hints[one.name]) else (hints[one.name].__doc__ or "").partition("\n")[0]
        default = one.default if one.default is not MISSING else None
        found[one.name] = {
            **({"description": text} if text else {}),
            **({"default": default} if isinstance(default, str | int | float) else {}),
            **schema,
        }
    return found


def _value(kind: Any, allowed: tuple[str, ...], extensible: bool = False) -> dict[str, Any]:
    if is_dataclass(kind) and isinstance(kind, type):
        return {"type": "object", "properties": _properties(kind), "additionalProperties": False}
    if isinstance(kind, UnionType):  # `float | None`
        return {"anyOf": [_value(get_args(kind)[0], allowed, extensible), {"type": "null"}]}
    if get_origin(kind) is tuple:
        return {"type": "array", "items": _value(get_args(kind)[0], allowed, extensible)}
    if get_origin(kind) is dict:
        return {"type": "object", "additionalProperties": _value(get_args(kind)[1], allowed, extensible)}
    if kind is str:
        others = {"type": "string"} if extensible else _INTERPOLATION
        return {"anyOf": [{"enum": list(allowed)}, others]} if allowed else {"type": "string"}
    return {"anyOf": [{"type": _SIMPLE[kind]}, _INTERPOLATION]} if kind in _SIMPLE else {}


def _allowed(kind: type[Any], name: str, hint: Any) -> tuple[tuple[str, ...], bool]:
    """What a field of texts takes, as its dataclass says when it is given something else, and whether other packages may add to that.

    Nothing where any text will do.
    """
    given = {str: _NOT_A_VALUE, tuple[str, ...]: (_NOT_A_VALUE,)}.get(hint)
    try:
        if given:
            kind(**{name: given})
    except ChoiceError as error:
        if error.key.rpartition(".")[2] == name:
            return error.allowed, error.extensible
    except InputError:  # It takes no such text, and has no list of those that it takes.
        pass
    return (), False
