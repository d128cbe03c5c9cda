"""The short way from the gate to an engine: answers pass unchanged, leaving clients are heard, lost engines not waited for."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from crossmesh.serve.admission import Admission
from crossmesh.serve.asgi import App, Message, Receive, Scope, Send
from crossmesh.serve.direct import DirectServer, connect, forward
from crossmesh.serve.gate import Gate

REQUEST: dict[str, Any] = {
    "type": "http",
    "method": "POST",
    "path": "/gpu/v1/completions",
    "raw_path": b"/gpu/v1/completions",
    "query_string": b"a=%20b",
    "http_version": "1.1",
    "headers": [(b"content-type", b"application/json"), (b"x", b"\xe9")],
    "client": ("127.0.0.1", 7),
}


class Client:
    def __init__(self, *parts: bytes) -> None:
        self._parts = list(parts or (b"",))
        self.leave = asyncio.Event()
        self.sent: list[Any] = []

    async def receive(self) -> Message:
        if self._parts:
            return {"type": "http.request", "body": self._parts.pop(0), "more_body": bool(self._parts)}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)


async def start(send: Send, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": 201, "headers": list(headers)})


def run(app: App, ask: Callable[[str], Awaitable[None]]) -> None:
    async def both() -> None:
        server = DirectServer(app)
        await server.start()
        try:
            await ask(server.path)
        finally:
            await asyncio.wait_for(server.stop(), 5)

    asyncio.run(both())


async def opened(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    streams = await connect(path)
    assert streams is not None
    return streams


def test_request_and_answer_pass_as_they_are() -> None:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        await start(send, (b"content-type", b"text/event-stream"), (b"y", b"\xe8"))
        for part in (b"data: 1\n\n", b"", body):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    client = Client(b"one ", b"two", b" \x00\xff" * 100_000)

    async def ask(path: str) -> None:
        assert Path(path).parent.stat().st_mode & 0o777 == 0o700
        await forward(await opened(path), REQUEST, client.receive, client.send, 5)

    run(app, ask)
    assert client.sent[0] == {
        "type": "http.response.start",
        "status": 201,
        "headers": [(b"content-type", b"text/event-stream"), (b"y", b"\xe8")],
    }
    bodies = [(message["body"], message["more_body"]) for message in client.sent[1:]]
    assert bodies == [(b"data: 1\n\n", True), (b"", True), (b"one two" + b" \x00\xff" * 100_000, True), (b"", False)]
    assert {key: seen[0][key] for key in REQUEST if key != "client"} == {key: REQUEST[key] for key in REQUEST if key != "client"}


@pytest.mark.parametrize("reason", ["left", "late"])
def test_a_client_that_leaves_or_waits_too_long_is_heard_in_the_engine_by_all_who_listen(reason: str) -> None:
    received: list[str] = []

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["more_body"] is False
        await start(send)
        received.extend([message["type"] for message in await asyncio.gather(receive(), receive())])

    client = Client(b"{}")

    async def ask(path: str) -> None:
        asking = asyncio.ensure_future(forward(await opened(path), REQUEST, client.receive, client.send, 0.3 if reason == "late" else 60))
        while not client.sent:
            await asyncio.sleep(0)
        if reason == "left":
            client.leave.set()
        await asyncio.wait_for(asking, 5)

    run(app, ask)
    assert received == ["http.disconnect"] * 2


def test_an_engine_that_goes_ends_the_answer_where_it_is_and_takes_no_more() -> None:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await start(send)
        raise ConnectionResetError

    client = Client(b"{}")
    paths: list[str] = []

    async def ask(path: str) -> None:
        paths.append(path)
        await asyncio.wait_for(forward(await opened(path), REQUEST, client.receive, client.send, 60), 5)

    run(app, ask)
    assert [message["type"] for message in client.sent] == ["http.response.start"]
    assert asyncio.run(connect(paths[0])) is None


def test_a_stopping_engine_answers_what_it_has() -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
            await start(send)
            await release.wait()
            await send({"type": "http.response.body", "body": b"whole"})

        server, client = DirectServer(app), Client(b"{}")
        await server.start()
        asking = asyncio.ensure_future(forward(await opened(server.path), REQUEST, client.receive, client.send, 60))
        while not client.sent:
            await asyncio.sleep(0)
        stopping = asyncio.ensure_future(server.stop())
        await asyncio.sleep(0.05)
        assert not stopping.done()
        assert await connect(server.path) is None
        release.set()
        await asyncio.wait_for(asyncio.gather(asking, stopping), 5)
        assert client.sent[-1] == {"type": "http.response.body", "body": b"whole", "more_body": False}

    asyncio.run(main())


@pytest.mark.parametrize("there", [True, False])
def test_the_gate_takes_the_short_way_while_it_is_there_and_ray_serves_when_it_is_not(tmp_path: Path, *, there: bool) -> None:
    rules = Admission("/gpu", {}, 2, 60.0, str(tmp_path / "access.jsonl"))
    came: list[str] = []

    def named(name: str) -> App:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            came.append(name)
            headers = dict(scope["headers"])
            assert b"authorization" not in headers
            if name == "engine":
                assert len(headers[b"x-request-id"]) == 32
                assert scope["root_path"] == "/gpu"
            await receive()
            await start(send)
            await send({"type": "http.response.body", "body": b"{}"})

        return app

    async def ask(path: str) -> None:
        gate = Gate(named("proxy"), lambda: {"gpu": rules}, lambda: {"/gpu": ("/nowhere", *([path] if there else []))})
        client = Client(b"{}")
        await gate({**REQUEST, "headers": [(b"authorization", b"Bearer x")]}, client.receive, client.send)
        assert client.sent[0]["status"] == 201
        assert (b"x-request-id" in dict(client.sent[0]["headers"])) is there

    run(named("engine"), ask)
    assert came == ["engine" if there else "proxy"]
