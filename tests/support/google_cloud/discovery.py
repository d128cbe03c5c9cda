"""Google's discovery documents as a judge: which method a request calls, and what is wrong with its parameters, body or answer."""

import base64
import binascii
import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import googleapiclient

_FOLDER = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents"
FILES = {
    "compute.googleapis.com": "compute.v1.json",
    "tpu.googleapis.com": "tpu.v2.json",
    "cloudresourcemanager.googleapis.com": "cloudresourcemanager.v1.json",
    "iam.googleapis.com": "iam.v1.json",
}
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "object": (dict,),
}
_INTEGERS = {"int32": 31, "uint32": 32, "int64": 63, "uint64": 64}


@dataclass(frozen=True)
class Call:
    """A request that a document knows."""

    method: str
    """Its id, like `compute.instances.insert`."""
    parameters: Mapping[str, str]
    """Of path and query."""
    body: Any
    wrong: tuple[str, ...]
    """What the document does not allow."""


@functools.cache
def document(host: str) -> dict[str, Any]:
    """The document of the API at `host`."""
    loaded: dict[str, Any] = json.loads((_FOLDER / FILES[host]).read_text(encoding="utf-8"))
    return loaded


@functools.cache
def _methods(host: str) -> dict[str, tuple[str, re.Pattern[str], dict[str, Any]]]:
    """By id: the HTTP method, the pattern of the path, and what the document says of it."""
    found = document(host)

    def walk(resources: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        for resource in resources.values():
            yield from resource.get("methods", {}).values()
            yield from walk(resource.get("resources", {}))

    return {method["id"]: (method["httpMethod"], _pattern(found["servicePath"], method), method) for method in walk(found["resources"])}


def _pattern(prefix: str, method: Mapping[str, Any]) -> re.Pattern[str]:
    parts = re.split(r"\{(\+?)(\w+)\}", method["path"])
    text = re.escape(prefix + parts[0])
    for plus, name, rest in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        inner = method["parameters"][name].get("pattern", ".+").removeprefix("^").removesuffix("$") if plus else "[^/:]+"
        text += f"(?P<{name}>{inner}){re.escape(rest)}"
    return re.compile("/" + text)


def read(host: str, verb: str, path: str, query: Mapping[str, list[str]], body: Any) -> Call | None:
    """What a request calls and what is wrong with it; None when the document has no such method."""
    for name, (http, pattern, method) in _methods(host).items():
        if http == verb and (found := pattern.fullmatch(path)):
            wrong = [*_wrong_parameters(host, method, found.groupdict(), query), *_wrong_body(host, method, body)]
            return Call(name, {**found.groupdict(), **{key: values[-1] for key, values in query.items()}}, body, tuple(wrong))
    return None


def wrong_answer(host: str, method: str, answer: Any) -> list[str]:
    """What the schema of the method's response does not allow in `answer`."""
    schema = _methods(host)[method][2]["response"]
    return list(_wrong(answer, schema, host, "answer", ""))


def _wrong_parameters(host: str, method: Mapping[str, Any], path: Mapping[str, str], query: Mapping[str, list[str]]) -> Iterator[str]:
    own, common = method.get("parameters", {}), document(host)["parameters"]
    for name, value in path.items():
        if (pattern := own[name].get("pattern")) and not re.fullmatch(pattern, value):
            yield f"{name}={value!r} does not match {pattern}"
    for name, values in query.items():
        known = own.get(name) if own.get(name, {}).get("location") == "query" else common.get(name)
        if known is None:
            yield f"unknown parameter {name}"
        elif len(values) > 1 and not known.get("repeated"):
            yield f"{name} is given {len(values)} times"
        else:
            for value in values:
                yield from _wrong_text(value, known, name)
    for name, known in own.items():
        if known.get("required") and name not in path and name not in query:
            yield f"parameter {name} is missing"


def _wrong_text(value: str, known: Mapping[str, Any], name: str) -> Iterator[str]:
    if "enum" in known and value not in known["enum"]:
        yield f"{name}={value!r} is not one of {known['enum']}"
    if known["type"] == "boolean" and value not in ("true", "false"):
        yield f"{name}={value!r} is not a boolean"
    if known["type"] in ("integer", "number") and not re.fullmatch(r"-?\d+(\.\d+)?", value):
        yield f"{name}={value!r} is not a number"


def _wrong_body(host: str, method: Mapping[str, Any], body: Any) -> Iterator[str]:
    if "request" not in method:
        if body is not None:
            yield "a body where none is allowed"
        return
    yield from _wrong({} if body is None else body, method["request"], host, "body", method["id"])


def _wrong(value: Any, schema: Mapping[str, Any], host: str, at: str, method: str) -> Iterator[str]:
    """Unknown fields, wrong types, formats and enum values, and fields that `method` requires."""
    schema = document(host)["schemas"][schema["$ref"]] if "$ref" in schema else schema
    kind = schema["type"]
    if kind == "any":
        return
    if kind == "array":
        if not isinstance(value, list):
            yield f"{at}: expected a list, got {type(value).__name__}"
            return
        for index, one in enumerate(value):
            yield from _wrong(one, schema["items"], host, f"{at}[{index}]", method)
        return
    if (said := _wrong_scalar(value, schema)) is not None:
        yield f"{at}: {said}"
    elif kind == "object":
        properties, others = schema.get("properties", {}), schema.get("additionalProperties")
        for key, one in value.items():
            if key not in properties and others is None:
                yield f"{at}: unknown field {key}"
            else:
                yield from _wrong(one, properties.get(key, others), host, f"{at}.{key}", method)
        for key, known in properties.items():
            if method in known.get("annotations", {}).get("required", ()) and key not in value:
                yield f"{at}: {key} is missing"


def _wrong_scalar(value: Any, schema: Mapping[str, Any]) -> str | None:
    form = schema.get("format", "")
    if form in _INTEGERS:
        return _wrong_integer(value, form)
    fits = isinstance(value, _TYPES[schema["type"]]) and (schema["type"] == "boolean" or not isinstance(value, bool))
    if not fits:
        return f"expected {schema['type']}, got {value!r}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{value!r} is not one of {schema['enum']}"
    if form == "byte":
        try:
            base64.b64decode(value, altchars=b"-_", validate=True)
        except binascii.Error:
            return f"{value!r} is not in base64"
    return None


def _wrong_integer(value: Any, form: str) -> str | None:
    """JSON's numbers, and texts of them: what Google takes for 64 bits."""
    if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, str) and re.fullmatch(r"-?\d+", value))):
        return f"expected {form}, got {value!r}"
    low = 0 if form.startswith("u") else -(1 << _INTEGERS[form])
    return None if low <= int(value) < 1 << _INTEGERS[form] else f"{value} does not fit {form}"
