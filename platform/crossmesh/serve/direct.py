"""The short way from the gate into an engine on the same node: ASGI messages over a Unix socket, one connection a request.

Ray Serve's way of a streamed answer costs a Ray object and several threads' attention for each token. A server of one replica needs no
choice between replicas, so its requests take this way while the replica is there, and Ray Serve's whenever it is not. Whoever may open the
socket's folder, which is the owner alone, may ask; keys are the gate's matter. A frame is its length (4 bytes), its kind (1 byte) and its
content; heads are JSON, bodies bytes.
"""

import asyncio
import json
import struct
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from crossmesh.serve.asgi import App, Message, Receive, Scope, Send

_HEAD, _PART, _LAST = b"H", b"P", b"L"
_FRAME = struct.Struct(">Ic")
_LARGEST = 64 << 20
"""Bytes of a frame at most: what a body may have is the proxy's matter."""
_KEPT = ("method", "path", "raw_path", "query_string", "root_path", "http_version", "scheme", "client", "server")
"""What of a request the application is told, headers beside."""


def _frame(kind: bytes, content: bytes) -> bytes:
    return _FRAME.pack(len(content), kind) + content


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The next frame. Raises `EOFError` at the end of the connection."""
    length, kind = _FRAME.unpack(await reader.readexactly(_FRAME.size))
    if length > _LARGEST:
        raise EOFError(f"a frame of {length} bytes")
    return kind, await reader.readexactly(length)


class DirectServer:
    """The replica's end.

    Args:
        app: answers every request.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._running: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.path = ""

    async def start(self) -> None:
        """Listen at `path`, in a folder that only this user may enter."""
        self._folder = tempfile.TemporaryDirectory(prefix="engine-")
        self.path = str(Path(self._folder.name) / "s")
        self._server = await asyncio.start_unix_server(self._serve, self.path, limit=_LARGEST)

    async def stop(self) -> None:
        """Take no more requests, and return once those that run are answered."""
        if self._server is None or self._folder is None:
            return
        self._server.close()
        self._folder.cleanup()
        while self._running:
            await asyncio.wait(self._running)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        try:
            kind, content = await _read(reader)
            if kind == _HEAD:
                await self._answer(json.loads(content), reader, writer)
        except (EOFError, ConnectionError):
            pass  # The gate has left.
        finally:
            writer.close()

    async def _answer(self, head: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        whole, left = False, asyncio.Event()
        watching: asyncio.Task[None] | None = None

        async def watch() -> None:
            with suppress(ConnectionError):
                await reader.read()  # Nothing comes after the body but the end.
            left.set()

        async def receive() -> Message:
            nonlocal whole, watching
            if not whole:
                try:
                    kind, content = await _read(reader)
                except (EOFError, ConnectionError):
                    whole = True
                    left.set()
                    return {"type": "http.disconnect"}
                whole = kind == _LAST
                return {"type": "http.request", "body": content, "more_body": not whole}
            watching = watching or asyncio.create_task(watch())
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in message["headers"]]
                writer.write(_frame(_HEAD, json.dumps([message["status"], headers]).encode()))
            elif message["type"] == "http.response.body":
                writer.write(_frame(_PART if message.get("more_body", False) else _LAST, message.get("body", b"")))
            await writer.drain()

        try:
            await self._app(_scope(head), receive, send)
        finally:
            if watching is not None:
                watching.cancel()


def _scope(head: dict[str, Any]) -> Scope:
    """The ASGI scope of a request that `_head` has written."""
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head["headers"]]
    bytes_of = {name: head[name].encode("latin-1") for name in ("raw_path", "query_string") if head.get(name) is not None}
    versions = {"version": "3.0", "spec_version": "2.3"}
    return {**head, **bytes_of, "headers": headers, "type": "http", "asgi": versions, "extensions": {}, "state": {}}


def _head(scope: Scope) -> bytes:
    said: dict[str, Any] = {name: scope.get(name) for name in _KEPT}
    for name in ("raw_path", "query_string"):
        said[name] = None if said[name] is None else said[name].decode("latin-1")
    said["headers"] = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]]
    return json.dumps(said).encode()


async def connect(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    """Open a connection to the engine that listens at `path`; None when none does."""
    try:
        return await asyncio.open_unix_connection(path, limit=_LARGEST)
    except OSError:
        return None


async def forward(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], scope: Scope, receive: Receive, send: Send, timeout_s: float
) -> None:
    """Have the engine answer a request of the gate's: returns when it has, when the client has left, or after `timeout_s`."""
    reader, writer = streams
    writer.write(_frame(_HEAD, _head(scope)))
    passing = asyncio.create_task(_pass_on(receive, writer))
    answering = asyncio.create_task(_pass_back(reader, send))
    try:
        await asyncio.wait({passing, answering}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            answering.result()
    finally:
        for one in (passing, answering):
            one.cancel()
        await asyncio.gather(passing, answering, return_exceptions=True)
        writer.close()  # Tells the engine that nobody waits, if it still answers.


async def _pass_on(receive: Receive, writer: asyncio.StreamWriter) -> None:
    """Pass the body on; return when the client has left."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        with suppress(ConnectionError):  # The engine is gone: the answer ends as well.
            writer.write(_frame(_PART if message.get("more_body", False) else _LAST, message.get("body", b"")))
            await writer.drain()


async def _pass_back(reader: asyncio.StreamReader, send: Send) -> None:
    """Pass the answer back; an engine that is gone ends it where it is."""
    with suppress(EOFError, ConnectionError):
        while True:
            kind, content = await _read(reader)
            if kind == _HEAD:
                status, headers = json.loads(content)
                encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
                await send({"type": "http.response.start", "status": status, "headers": encoded})
                continue
            await send({"type": "http.response.body", "body": content, "more_body": kind == _PART})
            if kind == _LAST:
                return
