"""What is answered in place of an engine: bodies that cannot be read, models that are not there, errors of other forms."""

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import PlainTextResponse

from crossmesh.serve.openai_errors import OpenAIErrors, in_openais_form

CHAT = "/v1/chat/completions"
MODELS = ["base", "one"]


def engine() -> FastAPI:
    app = FastAPI()

    @app.post(CHAT)
    async def chat(request: Request) -> dict[str, Any]:
        return {"got": await request.json()}

    @app.get("/detail")
    async def detail() -> None:
        raise HTTPException(409, "busy")

    @app.get("/text")
    async def text() -> PlainTextResponse:
        return PlainTextResponse("went wrong", 500)

    return app


def ask(
    path: str, body: bytes = b"", method: str = "POST", models: list[str] = MODELS, prefix: str = ""
) -> tuple[int, dict[bytes, bytes], Any]:
    sent: list[Any] = []
    parts = [{"type": "http.request", "body": body[:7], "more_body": True}, {"type": "http.request", "body": body[7:]}]

    async def receive() -> Any:
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": prefix + path, "root_path": prefix}
    scope |= {"headers": [(b"content-type", b"application/json")]}
    scope |= {"query_string": b"", "http_version": "1.1", "scheme": "http", "server": ("h", 1), "client": ("c", 2)}
    asyncio.run(OpenAIErrors(engine(), lambda: models)(scope, receive, send))
    head = dict(sent[0]["headers"])
    content = b"".join(message.get("body", b"") for message in sent[1:])
    assert int(head[b"content-length"]) == len(content)
    return sent[0]["status"], head, json.loads(content)


@pytest.mark.parametrize("prefix", ["", "/gpu"])
def test_a_request_that_can_be_understood_passes_as_it_is(prefix: str) -> None:
    asked = {"model": "one", "messages": [{"role": "user", "content": "é"}]}
    assert ask(CHAT, json.dumps(asked, ensure_ascii=False).encode(), prefix=prefix)[::2] == (200, {"got": asked})


@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        (b'{"model": "base", "x": ' + b"[" * 100_000, 400, "invalid_json", "nested"),
        (b'{"model": "base", "x": ' + b"[" * 150 + b"]" * 150 + b"}", 400, "invalid_json", "nested"),
        (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, 400, "invalid_json", "nested"),
        ('{"model": "base", "x": "é"}'.encode("latin-1"), 400, "invalid_json", "not UTF-8 (byte 24)"),
        (b"{", 400, "invalid_json", "not JSON"),
        (b'{"n": ' + b"1" * 5_000 + b"}", 400, "invalid_json", "not JSON"),
        (b'{"messages": []}', 400, "model_required", "Valid models: base, one."),
        (b'{"model": null}', 400, "model_required", "Valid models: base, one."),
        (b'{"model": ""}', 400, "model_required", "Valid models: base, one."),
        (b'{"model": "two"}', 404, "model_not_found", "'two' does not exist. Valid models: base, one."),
    ],
)
def test_a_body_that_cannot_be_answered_is_an_error_in_openais_form(body: bytes, status: int, code: str, words: str) -> None:
    found, _, said = ask(CHAT, body)
    assert (found, said["error"]["code"], said["error"]["type"]) == (status, code, "invalid_request_error")
    assert words in said["error"]["message"]
    assert set(said["error"]) == {"message", "type", "param", "code"}


def test_the_only_model_need_not_be_named() -> None:
    assert ask(CHAT, b'{"messages": []}', models=["base"])[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/nowhere", 404, "Not Found"),
        ("POST", "/nowhere", 404, "Not Found"),
        ("GET", CHAT, 405, "Method Not Allowed"),
        ("GET", "/detail", 409, "busy"),
        ("GET", "/text", 500, "went wrong"),
    ],
)
def test_errors_of_other_forms_get_openais(method: str, path: str, status: int, message: str) -> None:
    found, head, said = ask(path, b"", method)
    assert (found, said["error"]["message"], head[b"content-type"]) == (status, message, b"application/json")
    assert head.get(b"allow") == (b"POST" if status == 405 else None)


def test_an_error_in_openais_form_stays() -> None:
    own = b'{"error": {"message": "no", "type": "NotFoundError", "param": null, "code": 404}}'
    assert in_openais_form(404, own) == own
    assert json.loads(in_openais_form(500, b""))["error"]["message"] == "The request failed."
    assert json.loads(in_openais_form(422, b'{"detail": [{"loc": ["body"]}]}'))["error"]["message"] == '[{"loc": ["body"]}]'
