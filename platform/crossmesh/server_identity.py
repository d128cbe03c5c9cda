"""Which server answers: recognised before, while and after it is asked, so that no result is of two servers.

Every answer of a crossmesh server carries the digest of its fingerprint, and is held against it one by one. Of another server only the
list of its models is known; it is looked at again and again, each time on a connection of its own, because two servers that listen on one
port are met at random.
"""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from crossmesh.errors import CrossmeshError, InputError
from crossmesh.files import digest_text, parse_json

HEADER = "x-crossmesh-fingerprint"
"""Header of every answer of an engine of ours: `sha256` of its fingerprint."""

_LOOKS = 8
"""Connections before and after: of two servers that are met equally often, one is missed in 1 of 128 times each."""
_TIMEOUT_S = 30.0
_TRIES, _BETWEEN_S = 5, 1.0
_CHANGING = ("created", "permission")
"""What a model's card says anew at each answer."""


class ServerChangedError(CrossmeshError):
    """Another server answers than the one that was asked first."""


@dataclass(frozen=True)
class Identity:
    """What one answer tells of the server."""

    fingerprint: str | None
    """Digest that crossmesh's servers tell; None of another server."""
    signed: bool
    """Whether it came with the answer, as it then does with every answer."""
    models: str
    """The cards of its models."""


class Origin:
    """The server behind an OpenAI base URL, as it was when this was made.

    Args:
        url: with or without `/v1`.
        key: sent as bearer token; may be empty.
        expected: digest of the fingerprint that it must have; None: whichever it has.

    Raises:
        InputError: it does not list its models.
        ServerChangedError: it is already another one, or two answer in turn.
    """

    def __init__(self, url: str, key: str, expected: str | None = None) -> None:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise InputError(f"The endpoint {url!r} is not an http:// or https:// URL.")
        self._url = f"{url.rstrip('/').removesuffix('/v1')}/v1"
        self._key = key
        local = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")  # Of this machine no proxy is asked.
        self._opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))
        self._asks = True
        self._first = self._look()
        self._asks = self._first.fingerprint is not None
        if expected is not None and self._first.fingerprint is not None and self._first.fingerprint != expected:
            raise self._changed(f"its fingerprint is {_short(self._first.fingerprint)}, not {_short(expected)}")
        self.check()

    @property
    def signed(self) -> bool:
        """Whether every answer says which server it comes from."""
        return self._first.signed

    @property
    def models(self) -> str:
        """What answers that do not say where they come from are kept under: the digest of the models; empty where answers say it."""
        return "" if self.signed else digest_text(self._first.models)

    def check(self, looks: int = _LOOKS) -> None:
        """Look again, each time on a new connection; raises `ServerChangedError` when it is not the first server."""
        for _ in range(1 if self.signed else looks):
            found = self._look()
            if found.fingerprint != self._first.fingerprint:
                raise self._changed(f"its fingerprint is {_short(found.fingerprint)}, not {_short(self._first.fingerprint)}")
            if found.models != self._first.models:
                raise self._changed(f"its models are {found.models[:300]}, not {self._first.models[:300]}")

    def check_answer(self, headers: Mapping[str, str]) -> None:
        """Raise `ServerChangedError` for the answer of another server, where answers tell."""
        found = headers.get(HEADER)
        if self.signed and found != self._first.fingerprint:
            raise self._changed(f"an answer has the fingerprint {_short(found)}, not {_short(self._first.fingerprint)}")

    def _changed(self, how: str) -> ServerChangedError:
        return ServerChangedError(
            f"Another server answers at {self._url} than at the beginning: {how}. It was replaced or changed meanwhile, or two servers "
            "listen on one port. Answers that may be another server's are not kept. See that one server answers there, and start again."
        )

    def _look(self) -> Identity:
        """Ask once on a new connection; a server that is busy is asked again."""
        said = ""
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_BETWEEN_S)
            try:
                status, headers, body = self._get("/models")
            except (OSError, HTTPException) as error:
                said = str(error)
                continue
            if status == 200:
                signed = headers.get(HEADER)
                return Identity(signed or self._asked_fingerprint(), signed is not None, _cards(body, self._url))
            said = f"status {status}: {body[:200].decode(errors='replace')}"
            if status not in (408, 429) and status < 500:
                break
        raise InputError(f"{self._url}/models does not list the models ({said}). Check the URL and the key, and that the server is ready.")

    def _asked_fingerprint(self) -> str | None:
        """What it says when asked, where something between has taken the header away."""
        if not self._asks:
            return None
        try:
            status, _, body = self._get("/fingerprint")
            said = parse_json(body) if status == 200 else None
        except (OSError, HTTPException, ValueError):
            return None
        return said.get("sha256") if isinstance(said, dict) and isinstance(said.get("sha256"), str) else None

    def _get(self, path: str) -> "tuple[int, Message[str, str], bytes]":
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        request = urllib.request.Request(self._url + path, headers=headers)  # noqa: S310  # checked: http(s)
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()


def _cards(body: bytes, url: str) -> str:
    try:
        cards: list[dict[str, Any]] = parse_json(body)["data"]
        lasting = [{name: value for name, value in card.items() if name not in _CHANGING} for card in cards]
        # Not canonical: NaN in a card is no reason to refuse a server.
        return json.dumps(sorted(lasting, key=lambda card: str(card["id"])), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{url}/models is not what OpenAI's is. Give an OpenAI base URL.") from error


def _short(digest: str | None) -> str:
    return digest[:12] if digest else "none"
