"""The gate over a stand-in for Ray Serve's proxy: who passes, how many at once, what is said in place of an answer, and what is logged."""

import asyncio
import hashlib
import json
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray.serve._private import http_util

from crossmesh.serve.admission import Admission, for_path
from crossmesh.serve.gate import PROXY_HEADER, PROXY_VARIABLE, Gate, proxy_middleware
from crossmesh.serve.keys import key_digest

KEY, ALICES = "cm-0123456789abcdef", "cm-fedcba9876543210"
Message = MutableMapping[str, Any]


@pytest.fixture
def rules(tmp_path: Path) -> Admission:
    return Admission("", {"own": key_digest(KEY), "alice": key_digest(ALICES)}, 2, 60.0, str(tmp_path / "access.jsonl"))


def bearer(key: str) -> tuple[bytes, bytes]:
    return b"authorization", f"Bearer {key}".encode()


def scope(path: str, *headers: tuple[bytes, bytes], kind: str = "http", method: str = "GET") -> dict[str, Any]:
    return {"type": kind, "path": path, "method": method, "headers": list(headers)}


class Client:
    """Sends one request and keeps what comes back; it leaves when `leave` is set."""

    def __init__(self, body: bytes = b"") -> None:
        self.leave = asyncio.Event()
        self.sent: list[Any] = []
        self._body: bytes | None = body

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.sent[1]["body"])["error"]
        return found

    def header(self, name: bytes) -> bytes | None:
        return dict(self.sent[0]["headers"]).get(name)


async def echo(seen: MutableMapping[str, Any], receive: Any, send: Any) -> None:
    """Answer with what the proxy would have got."""
    await send({"type": "reached", "scope": seen})


def answering(*messages: Message) -> Callable[..., Awaitable[None]]:
    async def proxy(_: Any, receive: Any, send: Any) -> None:
        await receive()
        for message in messages:
            await send(message)

    return proxy


def ask(rules: Admission | None, request: dict[str, Any], proxy: Any = echo, body: bytes = b"") -> Client:
    async def run() -> Client:
        client = Client(body)
        await Gate(proxy, lambda: {} if rules is None else {"": rules}, dict)(request, client.receive, client.send)
        return client

    return asyncio.run(run())


def log_of(rules: Admission) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(rules.log).read_text().splitlines()]


@pytest.mark.parametrize("path", ["/v1/models", "/docs", "/openapi.json", "/health", "/metrics", "/", "/-/routes", "/v1/fingerprint"])
def test_no_route_is_reached_without_a_key(rules: Admission, path: str) -> None:
    client = ask(rules, scope(path))
    assert (client.status, client.error["code"], client.header(b"www-authenticate")) == (401, "invalid_api_key", b"Bearer")
    assert set(client.error) == {"message", "type", "param", "code"}
    assert [(line["key"], line["status"]) for line in log_of(rules)] == [(None, 401)]


@pytest.mark.parametrize("header", [bearer(KEY), bearer(ALICES), (b"Authorization", b"bearer " + KEY.encode())])
def test_every_key_opens_and_goes_no_further(rules: Admission, header: tuple[bytes, bytes]) -> None:
    unlimited = [(b"x-request-timeout-seconds", b"0"), (b"X-Request-Disconnect-Disabled", b"?1")]
    passed = ask(rules, scope("/v1/models", header, (b"accept", b"x"), *unlimited)).sent[0]["scope"]
    assert passed["headers"] == [(b"accept", b"x"), (b"x-request-timeout-seconds", b"60")]


@pytest.mark.parametrize(
    "headers",
    [
        [bearer("cm-0123456789abcdeF")],
        [bearer(KEY[:-1])],
        [bearer("")],
        [bearer(hashlib.sha256(KEY.encode()).hexdigest())],
        [(b"authorization", b"Basic " + KEY.encode())],
        [(b"authorization", KEY.encode())],
        [(b"x-api-key", KEY.encode())],
        [bearer(KEY), bearer("another")],
        [(b"authorization", b"\xff\xfe \x80")],
    ],
)
def test_anything_else_does_not(rules: Admission, headers: list[tuple[bytes, bytes]]) -> None:
    assert ask(rules, scope("/v1/models", *headers)).status == 401


def test_web_sockets_are_closed_and_start_up_and_liveness_are_let_through(rules: Admission) -> None:
    assert ask(rules, scope("/v1/realtime", kind="websocket")).sent == [{"type": "websocket.close", "code": 1008}]
    assert ask(None, scope("", kind="lifespan")).sent[0]["type"] == "reached"
    assert ask(rules, scope("/-/healthz")).sent[0]["scope"]["path"] == "/-/healthz"


def test_liveness_names_the_proxy_and_its_port_is_shared_with_nobody(rules: Admission, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROXY_VARIABLE, "one")
    start = {"type": "http.response.start", "status": 200, "headers": []}
    assert ask(rules, scope("/-/healthz"), answering(start)).header(PROXY_HEADER) == b"one"
    monkeypatch.setattr(http_util, "set_socket_reuse_port", http_util.set_socket_reuse_port)  # Put back after the test.
    proxy_middleware()
    with socket.socket() as first, socket.socket() as second:
        assert http_util.set_socket_reuse_port(first)
        first.bind(("127.0.0.1", 0))
        first.listen()
        second.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        second.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with pytest.raises(OSError, match="in use"):
            second.bind(first.getsockname())


def test_the_table_of_servers_is_asked_of_the_application(rules: Admission) -> None:
    assert ask(rules, scope("/-/routes", bearer(KEY))).sent[0]["scope"]["path"] != "/-/routes"


def test_paths_belong_to_the_server_with_the_longest_prefix(rules: Admission) -> None:
    gpu, longer = replace(rules, prefix="/gpu"), replace(rules, prefix="/gpu-2")
    for path, found in (("/gpu/v1/models", gpu), ("/gpu-2/v1", longer), ("/gpux/v1", rules), ("/v1/models", rules), ("/gpu", gpu)):
        assert for_path([rules, gpu, longer], path) is found
    assert for_path([gpu], "/v1/models") is None
    assert ask(gpu, scope("/v1/models", bearer(KEY))).status == 404
    away = ask(None, scope("/v1/models", bearer(KEY)))
    assert (away.status, away.error["code"], away.header(b"retry-after")) == (503, "unavailable", b"5")


def test_more_requests_than_have_room_are_told_to_come_back_and_the_server_itself_stays_reachable(rules: Admission) -> None:
    async def run() -> None:
        open_, inside = asyncio.Event(), 0

        async def slow(seen: Any, receive: Any, send: Any) -> None:
            nonlocal inside
            inside += 1
            await open_.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        gate = Gate(slow, lambda: {"": rules}, dict)
        clients = [Client() for _ in range(4)]
        request = scope("/v1/completions", bearer(KEY), method="POST")
        first = [asyncio.create_task(gate(request, client.receive, client.send)) for client in clients[:2]]
        while inside < 2:
            await asyncio.sleep(0)
        await gate(request, clients[2].receive, clients[2].send)
        assert (clients[2].status, clients[2].error["code"], clients[2].header(b"retry-after")) == (429, "queue_full", b"1")
        others = [Client(), Client()]
        rest = [asyncio.create_task(gate(scope("/metrics", bearer(KEY)), others[0].receive, others[0].send))]
        unload = scope("/v1/unload_lora_adapter", bearer(KEY), method="POST")
        rest.append(asyncio.create_task(gate(unload, others[1].receive, others[1].send)))
        open_.set()
        await asyncio.gather(*first, *rest)
        await gate(request, clients[3].receive, clients[3].send)
        assert [client.status for client in (*clients[:2], clients[3], *others)] == [200] * 5

    asyncio.run(run())


@pytest.mark.parametrize(("kind", "end"), [("application/json", b"{}"), ("text/event-stream", b"data: {}\n\ndata: [DONE]\n\n")])
def test_who_has_the_end_of_an_answer_may_ask_again_at_once(rules: Admission, kind: str, end: bytes) -> None:
    async def run() -> None:
        sent, go_on = asyncio.Event(), asyncio.Event()

        async def lingering(seen: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind.encode())]})
            await send({"type": "http.response.body", "body": end, "more_body": kind == "text/event-stream"})
            sent.set()
            await go_on.wait()

        gate = Gate(lingering, lambda: {"": replace(rules, capacity=1)}, dict)
        first, second = Client(), Client()
        request = scope("/v1/completions", bearer(KEY), method="POST")
        tasks = [asyncio.create_task(gate(request, first.receive, first.send))]
        await sent.wait()
        tasks.append(asyncio.create_task(gate(request, second.receive, second.send)))
        while not second.sent:
            await asyncio.sleep(0)
        assert second.status == 200
        go_on.set()
        await asyncio.gather(*tasks)
        assert not gate._running.total()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("timeout_s", "messages", "code"),
    [
        (60.0, [], "unavailable"),
        (0.0, [{"type": "http.response.start", "status": 408, "headers": [(b"content-type", b"text/plain")]}], "timeout"),
        (
            60.0,
            [{"type": "http.response.start", "status": 503, "headers": [(b"content-type", b"text/plain; charset=utf-8")]}],
            "unavailable",
        ),
    ],
    ids=["nothing", "too late", "no replica"],
)
def test_what_ray_serve_does_not_answer_is_an_error_in_openais_form(
    rules: Admission, timeout_s: float, messages: list[Message], code: str
) -> None:
    proxy = answering(*messages, *([{"type": "http.response.body", "body": b"Request 3 timed out"}] if messages else []))
    client = ask(replace(rules, timeout_s=timeout_s), scope("/v1/completions", bearer(KEY), method="POST"), proxy)
    assert (client.status, client.error["code"], client.header(b"retry-after"), len(client.sent)) == (503, code, b"5", 2)


def test_the_engines_own_errors_pass(rules: Admission) -> None:
    start = {"type": "http.response.start", "status": 503, "headers": [(b"content-type", b"application/json")]}
    body = {"type": "http.response.body", "body": b"{}"}
    assert ask(rules, scope("/v1/completions", bearer(KEY), method="POST"), answering(start, body)).sent == [start, body]


def test_a_stream_that_breaks_off_says_so_in_its_last_event(rules: Admission) -> None:
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream; charset=utf-8")]}
    part = {"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True}
    client = ask(replace(rules, timeout_s=0.0), scope("/v1/completions", bearer(KEY), method="POST"), answering(start, part))
    last = client.sent[-1]
    assert last["more_body"] is False
    assert json.loads(last["body"].removeprefix(b"data: "))["error"]["code"] == "timeout"
    assert [(line["status"], line["cut"]) for line in log_of(rules)] == [(200, True)]


def test_the_log_names_key_model_and_tokens_and_what_was_said_only_when_told(rules: Admission) -> None:
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
    text = {"choices": [{"text": '"completion_tokens": 99'}], "usage": {"prompt_tokens": 3, "completion_tokens": 8}}
    proxy = answering(start, {"type": "http.response.body", "body": json.dumps(text).encode()})
    asked = json.dumps({"model": "one", "prompt": "a secret"}).encode()
    request = scope("/v1/completions", bearer(ALICES), method="POST")
    ask(rules, request, proxy, asked)
    ask(replace(rules, log_prompts=True), request, proxy, asked)
    first, second = log_of(rules)
    assert {key: first[key] for key in ("key", "method", "route", "model", "status", "prompt_tokens", "completion_tokens", "cut")} == {
        "key": "alice",
        "method": "POST",
        "route": "/v1/completions",
        "model": "one",
        "status": 200,
        "prompt_tokens": 3,
        "completion_tokens": 8,
        "cut": False,
    }
    assert "secret" not in json.dumps(first)
    assert second["request"]["prompt"] == "a secret"
    assert Path(rules.log).stat().st_mode & 0o777 == 0o600


def test_a_client_that_leaves_and_a_server_that_is_removed_end_the_request(rules: Admission) -> None:
    async def run(*, removed: bool) -> Client:
        started = asyncio.Event()

        async def until_disconnect(_: Any, receive: Any, send: Any) -> None:
            await receive()
            started.set()
            while (await receive())["type"] != "http.disconnect":
                pass

        present = {"": rules}
        gate, client = Gate(until_disconnect, lambda: dict(present), dict), Client()
        running = asyncio.create_task(gate(scope("/v1/completions", bearer(KEY), method="POST"), client.receive, client.send))
        await started.wait()
        if removed:
            present.clear()
        else:
            client.leave.set()
        await asyncio.wait_for(running, timeout=5)
        return client

    assert asyncio.run(run(removed=False)).sent == []
    assert asyncio.run(run(removed=True)).error["code"] == "closing"
    assert [line["status"] for line in log_of(rules)] == [499, 503]


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"a":' * 985 + b"1" + b"}" * 985, b'{"model": "\xe9"}', b'{"n": ' + b"1" * 5_000 + b"}"]
)
@pytest.mark.parametrize("prompts", [False, True])
def test_every_request_is_logged_whatever_its_body(rules: Admission, body: bytes, prompts: bool) -> None:
    start = {"type": "http.response.start", "status": 400, "headers": [(b"content-type", b"application/json")]}
    proxy = answering(start, {"type": "http.response.body", "body": b"{}"})
    client = ask(replace(rules, log_prompts=prompts), scope("/v1/completions", bearer(KEY), method="POST"), proxy, body)
    assert client.status == 400
    assert [(line["status"], line["model"]) for line in log_of(rules)] == [(400, None)]
