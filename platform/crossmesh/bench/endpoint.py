"""What a benchmark asks a server beside its loads: its models, its fingerprint, its prefix cache. Any OpenAI server will do.

Only vLLM answers the last two; of another server nothing is known there, and prompts that are all different keep its cache cold.
"""

import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from crossmesh.bench.load import Target
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.files import parse_json

_TIMEOUT_S = 30.0
_RESETS, _BETWEEN_S = 10, 0.2
_COUNTER = re.compile(r"^vllm:prefix_cache_(queries|hits)_total(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Lookups:
    """Tokens of prompts that an engine has looked up in its prefix cache since it started, and those it found."""

    queried: int
    found: int


def server_at(base_url: str, model: str, key: str, group: str = "bench") -> Target:
    """The server at an OpenAI base URL, the keys of `group` in the spec; an empty `model` is its first.

    Raises `InputError` when it does not answer as OpenAI's do, or has no such model.
    """
    origin = base_url.rstrip("/").removesuffix("/v1")
    try:
        status, body = _call(Target(origin, "", key), "/v1/models")
    except CrossmeshError as error:
        raise InputError(f"{group}.url={base_url}: {error.__cause__}. Start that server, or correct the URL.") from error
    if status != 200:
        raise InputError(
            f"{group}.url={base_url}: its /v1/models answers with status {status}. Check the URL, and the key in {group}.api_key_env."
        )
    try:
        names = [str(card["id"]) for card in parse_json(body)["data"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{group}.url={base_url}: its /v1/models is not what OpenAI's is. Give an OpenAI base URL.") from error
    if not names or (model and model not in names):
        raise InputError(f"{group}.model={model!r} is not served at {base_url}. It has: {', '.join(names) or 'no model'}.")
    return Target(origin, model or names[0], key)


def fingerprint_of(target: Target) -> dict[str, Any] | None:
    """What the server says it is (`GET /v1/fingerprint`, as crossmesh's do); None of another one."""
    status, body = _call(target, "/v1/fingerprint")
    try:
        said = parse_json(body) if status == 200 else None
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def is_emulated(server: Mapping[str, Any]) -> bool:
    """Whether a server, by its fingerprint or by what described it before it ran, computes on CPU devices under another name."""
    hardware = server.get("hardware")
    return bool(server.get("emulated") or (isinstance(hardware, Mapping) and hardware.get("emulated")))


def reset_cache(target: Target) -> bool:
    """Empty the server's prefix cache; False when it has no route for that, or could not: then some request still holds a part of it."""
    for _ in range(_RESETS):
        status, body = _call(target, "/reset_prefix_cache", post=True)
        if status != 200:
            return False
        try:
            if parse_json(body or b"{}").get("success", True):
                return True
        except (ValueError, AttributeError):
            return False
        time.sleep(_BETWEEN_S)  # The engine lets go of the last request a moment after its answer.
    return False


def lookups_of(target: Target) -> Lookups | None:
    """The counters of the server's prefix cache; None where it has none."""
    status, body = _call(target, "/metrics")
    return read_lookups(body.decode(errors="replace")) if status == 200 else None


def read_lookups(text: str) -> Lookups | None:
    """The same from Prometheus' text, summed over engines."""
    sums = {"queries": 0.0, "hits": 0.0}
    found = _COUNTER.findall(text)
    for name, value in found:
        sums[name] += float(value)
    return Lookups(int(sums["queries"]), int(sums["hits"])) if found else None


def _call(target: Target, path: str, *, post: bool = False) -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {target.key}"} if target.key else {}
    request = urllib.request.Request(target.origin + path, data=b"" if post else None, headers=headers)  # noqa: S310  # checked: http(s)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except (OSError, HTTPException) as error:
        raise CrossmeshError(
            f"No answer from {target.origin}{path}: {error}. What was measured is kept; run the same command again."
        ) from error
