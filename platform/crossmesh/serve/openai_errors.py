"""Answers in OpenAI's form where the application of an engine has none.

Bodies that it cannot read and models that it does not have are refused before they reach it; errors of its framework (unknown routes, wrong
methods, failures) are put into the form on their way back.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from crossmesh.files import parse_json
from crossmesh.serve.asgi import App, Message, Receive, Scope, Send

MODEL_ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
_DEEPEST = 128
"""Brackets within brackets in a body: no schema of a tool comes near, and a parser's own stack is not reached."""
_CODES = {400: "invalid_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "unsupported_media_type"}


class Refusal(Exception):  # noqa: N818  # It is an answer.
    """A request that is not passed on.

    Attributes:
        status: of the answer.
        error: what OpenAI's API has under `error`.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.error = error_of(status, message, param=param, code=code)


def error_of(status: int, message: str, *, param: str | None = None, code: str = "") -> dict[str, Any]:
    """An error in OpenAI's form, without the key `error` around it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"message": message, "type": kind, "param": param, "code": code or _CODES.get(status, str(status))}


def check_body(body: bytes, route: str, models: Sequence[str]) -> None:
    """Raise `Refusal` for a body that is not JSON, and on routes of a model for one that names none of `models`, the base first."""
    try:
        asked = parse_json(body.decode())
    except UnicodeDecodeError as error:
        raise Refusal(400, f"The body is not UTF-8 (byte {error.start}). Send JSON in UTF-8.", code="invalid_json") from error
    except ValueError as error:
        raise Refusal(400, f"The body is not JSON: {error}.", code="invalid_json") from error
    if _deeper(asked, _DEEPEST):
        raise Refusal(400, f"The body is nested more than {_DEEPEST} levels deep.", code="invalid_json")
    if route not in MODEL_ROUTES or not isinstance(asked, Mapping):
        return
    model = asked.get("model")
    known = ", ".join(models)
    if model is None or model == "":
        if len(models) > 1:
            raise Refusal(400, f"The request names no model. Valid models: {known}.", param="model", code="model_required")
    elif isinstance(model, str) and model not in models:
        raise Refusal(404, f"The model {model!r} does not exist. Valid models: {known}.", param="model", code="model_not_found")


def _deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most + 1):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one if isinstance(one, list) else ())
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def in_openais_form(status: int, body: bytes) -> bytes:
    """The body of an error as it is where it has OpenAI's form already, else what it says in that form."""
    try:
        said = parse_json(body)
    except ValueError:
        said = body[:1000].decode(errors="replace").strip()
    if isinstance(said, Mapping) and isinstance(said.get("error"), Mapping) and "message" in said["error"]:
        return body
    detail = said.get("detail", said) if isinstance(said, Mapping) else said
    message = detail if isinstance(detail, str) and detail else json.dumps(detail) if detail else "The request failed."
    return json.dumps({"error": error_of(status, message)}).encode()


class OpenAIErrors:
    """ASGI middleware inside the replica.

    Args:
        app: the application of the engine.
        models: the names of the models that it serves now, the base first.
    """

    def __init__(self, app: App, models: Callable[[], Sequence[str]]) -> None:
        self._app = app
        self._models = models

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on that can be understood, and errors back in OpenAI's form."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Errors(send)
        if scope["method"] == "POST" and _is_json(scope):
            messages, body = await _whole(receive)
            try:
                if body:
                    check_body(body, scope["path"].removeprefix(scope.get("root_path", "")), self._models())
            except Refusal as refusal:
                await _answer(send, refusal.status, json.dumps({"error": refusal.error}).encode(), ())
                return
            receive = _again(messages, receive)
        await self._app(scope, receive, answer.send)


class _Errors:
    """Holds an error back until it is whole."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def send(self, message: Message) -> None:
        """Pass a message on, unless it is part of an error."""
        if message["type"] == "http.response.start" and message["status"] >= 400:
            self._start = message
        elif self._start is None or message["type"] != "http.response.body":
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                status = self._start["status"]
                await _answer(self._send, status, in_openais_form(status, self._body), self._start["headers"])


async def _answer(send: Send, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
    others = [(name, value) for name, value in headers if name.lower() not in (b"content-type", b"content-length")]
    own = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*others, *own]})
    await send({"type": "http.response.body", "body": body})


def _is_json(scope: Scope) -> bool:
    kinds = [value for name, value in scope["headers"] if name.lower() == b"content-type"]
    return not kinds or b"json" in kinds[0].lower()


async def _whole(receive: Receive) -> tuple[list[Message], bytes]:
    """The messages of a request up to the end of its body, and the body."""
    messages: list[Message] = []
    while not messages or (messages[-1]["type"] == "http.request" and messages[-1].get("more_body", False)):
        messages.append(await receive())
    return messages, b"".join(message.get("body", b"") for message in messages)


def _again(messages: list[Message], receive: Receive) -> Receive:
    """Receive `messages` first, then what comes after them."""
    waiting = iter(messages)

    async def received() -> Message:
        message = next(waiting, None)
        return await receive() if message is None else message

    return received
