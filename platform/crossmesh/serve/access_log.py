"""The access log: one JSON object a line for each request, with the name of its key and without what was asked or answered.

Bodies of requests stand in it only when the server was told so (`serve.log_prompts`).
"""

import json
import logging
import os
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from crossmesh.files import parse_json

_FILE_BYTES = 64 << 20
_OLD_FILES = 4
_BODY_LIMIT = 1 << 20
"""Larger bodies are not looked into."""
_TOKENS = re.compile(rb'"(prompt_tokens|completion_tokens)":\s*(\d+)')
"""In generated text the quotation marks are escaped, so it cannot look like this."""


@dataclass(frozen=True)
class Entry:
    """What is known of one request when it has ended."""

    key: str | None
    """Name of its key; None when it had none that is taken."""
    method: str
    route: str
    status: int
    """499: the client left."""
    seconds: float
    request: bytes = b""
    """Body of the request, as far as it was read."""
    answer: bytes = b""
    """The last part of the answer."""
    cut: bool = False
    """The answer had begun and was not finished."""


def line(entry: Entry, *, prompts: bool, now: datetime) -> str:
    """Return the line of `entry`, without a line break."""
    body = _parsed(entry.request)
    tokens = {name.decode(): int(count) for name, count in _TOKENS.findall(entry.answer)}
    described: dict[str, Any] = {
        "time": now.isoformat(timespec="milliseconds"),
        "key": entry.key,
        "method": entry.method,
        "route": entry.route,
        "model": body.get("model") if isinstance(body.get("model"), str) else None,
        "status": entry.status,
        "seconds": round(entry.seconds, 4),
        "prompt_tokens": tokens.get("prompt_tokens"),
        "completion_tokens": tokens.get("completion_tokens"),
        "cut": entry.cut,
    }
    try:
        return json.dumps({**described, "request": body} if prompts else described)
    except RecursionError:  # It could be read and cannot be written: nested almost too deeply.
        return json.dumps({**described, "request": {}})


def _parsed(body: bytes) -> dict[str, Any]:
    """The body of a request as JSON; empty when it is none, or too large."""
    if not body or len(body) > _BODY_LIMIT:
        return {}
    try:
        value = parse_json(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class AccessLog:
    """Writes entries to files that are readable by their owner only and are rotated."""

    def __init__(self) -> None:
        self._handlers: dict[str, RotatingFileHandler | None] = {}

    def write(self, path: str, entry: Entry, *, prompts: bool) -> None:
        """Append `entry` to the file `path`. A file that cannot be written is said once, on standard error; requests go on."""
        if path not in self._handlers:
            self._handlers[path] = _open(path)
        handler = self._handlers[path]
        if handler is not None:
            text = line(entry, prompts=prompts, now=datetime.now(UTC))
            handler.emit(logging.LogRecord("access", logging.INFO, "", 0, text, None, None))


def _open(path: str) -> RotatingFileHandler | None:
    try:
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        return RotatingFileHandler(path, maxBytes=_FILE_BYTES, backupCount=_OLD_FILES, encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"The access log {path} cannot be written: {error}\n")
        return None
