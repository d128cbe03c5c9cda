"""A spec as the parameters of a run: dotted keys and texts; long ones as artifacts. Pure; stores nothing."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from crossmesh.files import digest_text
from crossmesh.track.masking import mask_secrets

PARAM_LIMIT = 6_000
"""Longest parameter value that any store takes, in characters."""
KEY_LIMIT = 250
_NOT_IN_KEYS = re.compile(r"[^/\w.\- ]")


def flatten(value: Any) -> dict[str, str]:
    """Return the leaves of a dataclass or mapping as text by dotted key, e.g. `{"optim.steps": "30", "lora.targets": '["q"]'}`.

    Text stays as it is; numbers, booleans, None and sequences become JSON. An empty mapping is a leaf, `{}`. Secrets are masked.
    """
    return {_key(path): mask_secrets(_text(leaf)) for path, leaf in _leaves(value, ())}


def split_long(values: Mapping[str, str], limit: int, folder: str) -> tuple[dict[str, str], dict[str, str]]:
    """Part `values` into those within `limit` characters and, by artifact path under `folder`, the full texts of the others.

    The first part keeps every key: a long value is replaced by the name of its artifact and its digest.
    """
    short: dict[str, str] = {}
    artifacts: dict[str, str] = {}
    for key, text in values.items():
        if len(text) <= limit:
            short[key] = text
            continue
        path = f"{folder}/{key.replace('/', '_')}.txt"
        artifacts[path] = text
        short[key] = f"artifact {path} ({len(text)} characters, sha256 {digest_text(text)})"
    return short, artifacts


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in dataclasses.fields(value):
            yield from _leaves(getattr(value, item.name), (*path, item.name))
    elif isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    else:
        yield path, value


def _key(path: tuple[str, ...]) -> str:
    key = _NOT_IN_KEYS.sub("_", ".".join(path)) or "value"
    return key if len(key) <= KEY_LIMIT else f"{key[: KEY_LIMIT - 17]}_{digest_text(key)[:16]}"


def _text(leaf: Any) -> str:
    if isinstance(leaf, str):
        return leaf
    if isinstance(leaf, PurePath):
        return str(leaf)
    return json.dumps(leaf, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """Make JSON of what is inside a sequence: dataclasses become objects, all else its text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return str(value)
