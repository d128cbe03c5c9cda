"""The gate in front of every server of a cluster: keys, a bounded queue, time-outs, and the access log.

It is plain ASGI around Ray Serve's one HTTP proxy, so no route (documentation, metrics, health) can be mounted outside it, strangers never
reach an engine, nor wake one that was scaled to zero, and what it counts is exact over all replicas and versions. Every refusal is an
error in OpenAI's form. What `/-/healthz` says (alive, one word) stays open for liveness checks.
"""

import asyncio
import json
import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from crossmesh.compat.ray_serve import listen_alone
from crossmesh.serve.access_log import AccessLog, Entry
from crossmesh.serve.admission import Admission, for_path, read_admissions, read_ways
from crossmesh.serve.asgi import App, Message, Receive, Scope, Send, receive_until
from crossmesh.serve.direct import connect, forward

PROXY_HOOK = "crossmesh.serve.gate:proxy_middleware"
"""Import path for `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`."""
PROXY_VARIABLE, PROXY_HEADER = "CROSSMESH_SERVE_PROXY", b"x-crossmesh-proxy"
"""Where the proxy is told its name, and where `/-/healthz` says it: what answers at an address may be another cluster's proxy."""
REFRESH_S = 0.5
"""Seconds from a change of the rules to when the gate takes them over, at most."""

_NOT_QUEUED = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache")
"""What is asked of the server itself, also when it is full."""
_OURS_ALONE = (b"authorization", b"x-request-timeout-seconds", b"x-request-disconnect-disabled")
"""Headers that go no further: the key, and what would lift Ray Serve's limits."""
_BODY_LIMIT = (1 << 20) + 1
_TAIL = 2048
_RETRY_FULL_S = 1
_RETRY_AWAY_S = 5


class Gate:
    """ASGI middleware of Ray Serve's proxy.

    Args:
        app: the proxy.
        read: returns the servers by name; called in a thread, again and again.
        ways: returns the sockets of engines on this node by the prefix of their server (`direct.py`), the oldest first; called likewise.
    """

    def __init__(
        self,
        app: App,
        read: Callable[[], Mapping[str, Admission]] = read_admissions,
        ways: Callable[[], Mapping[str, tuple[str, ...]]] = read_ways,
    ) -> None:
        self._app = app
        self._read = read
        self._read_ways = ways
        self._ways: Mapping[str, tuple[str, ...]] = {}
        self._admissions: tuple[Admission, ...] = ()
        self._running: Counter[str] = Counter()
        self._closed: dict[str, asyncio.Event] = {}
        self._log = AccessLog()
        self._name = os.environ.get(PROXY_VARIABLE, "").encode()
        self._first: asyncio.Future[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on lifespan events, liveness checks and admitted requests; answer all others (a web socket is closed)."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["path"] == "/-/healthz":
            await self._app(scope, receive, _naming(send, self._name))
            return
        await self._rules()
        rules = for_path(self._admissions, scope["path"])
        key = None if rules is None else rules.key_of(scope["headers"])
        if scope["type"] != "http":
            if key is None:
                await send({"type": "websocket.close", "code": 1008})
            else:
                await self._app(_passed_on(scope, 0), receive, send)
        elif rules is None:
            await self._nobody(send)
        else:
            await self._answer(rules, key, scope, _Exchange(receive, send, self._closed.setdefault(rules.prefix, asyncio.Event())))

    async def _rules(self) -> None:
        """Wait for the rules to be read the first time, and have them read again and again from then on."""
        if self._first is None:
            self._first = asyncio.get_running_loop().create_future()
            self._refreshing = asyncio.create_task(self._refresh(self._first))
        await asyncio.shield(self._first)

    async def _refresh(self, first: "asyncio.Future[None]") -> None:
        while True:
            try:
                self._take_over(tuple((await asyncio.to_thread(self._read)).values()))
                self._ways = await asyncio.to_thread(self._read_ways)
            except Exception as error:  # noqa: BLE001  # the GCS restarts: the rules of before hold until it answers
                sys.stderr.write(f"The rules of the servers cannot be read: {error}\n")
            if not first.done():
                first.set_result(None)
            await asyncio.sleep(REFRESH_S)

    def _take_over(self, admissions: tuple[Admission, ...]) -> None:
        """Apply new rules; requests to a server that is gone end."""
        self._admissions = admissions
        open_now = {one.prefix for one in admissions}
        for prefix in self._closed.keys() - open_now:
            self._closed.pop(prefix).set()

    async def _nobody(self, send: Send) -> None:
        if self._admissions:
            await _send_error(send, 404, "not_found", "No server has this path.")
        else:
            await _send_error(send, 503, "unavailable", "No server is ready here yet.", _RETRY_AWAY_S)

    async def _answer(self, rules: Admission, key: str | None, scope: Scope, exchange: "_Exchange") -> None:
        began = time.monotonic()
        route = scope["path"].removeprefix(rules.prefix)
        queued = scope["method"] == "POST" and route not in _NOT_QUEUED
        if key is None:
            await exchange.refuse(401, "invalid_api_key", "Incorrect or missing API key. Send it as: Authorization: Bearer <key>.")
        elif queued and self._running[rules.prefix] >= rules.capacity:
            message = f"{rules.capacity} requests are computing or waiting, which is all this server takes at once. Try again later."
            await exchange.refuse(429, "queue_full", message, _RETRY_FULL_S)
        else:
            with self._counted(rules.prefix, exchange) if queued else nullcontext():
                await self._pass(rules, scope, exchange)
                await exchange.complete(timed_out=time.monotonic() - began >= rules.timeout_s, timeout_s=rules.timeout_s)
        entry = exchange.entry(key, scope["method"], route, time.monotonic() - began)
        self._log.write(rules.log, entry, prompts=rules.log_prompts)

    @contextmanager
    def _counted(self, prefix: str, exchange: "_Exchange") -> Iterator[None]:
        """Count a request until the end of its answer is sent, not longer: who has it may ask again at once."""
        counted = [prefix]

        def free() -> None:
            if counted:
                self._running[counted.pop()] -= 1

        self._running[prefix] += 1
        exchange.when_ending(free)
        try:
            yield
        finally:
            free()

    async def _pass(self, rules: Admission, scope: Scope, exchange: "_Exchange") -> None:
        """Have the request answered: by the engine on this node where there is just one, else by Ray Serve."""
        for path in self._ways.get(rules.prefix, ()):
            if streams := await connect(path):
                request = _to_engine(scope, rules.prefix)
                exchange.name(request)
                await forward(streams, request, exchange.receive, exchange.send, rules.timeout_s)
                return
        await self._app(_passed_on(scope, rules.timeout_s), exchange.receive, exchange.send)


class _Exchange:
    """One request and its answer on their way through the gate."""

    def __init__(self, receive: Receive, send: Send, closed: asyncio.Event) -> None:
        self._receive = receive
        self._send = send
        self._closed = closed
        self._asked = b""
        self._tail = b""
        self._status = 0
        self._stream = False
        self._withheld = False
        """Whether the answer is Ray Serve's own word for a failure, which ours replaces."""
        self._done = False
        self._left = False
        self._cut = False
        self._named: list[tuple[bytes, bytes]] = []
        self._ending: Callable[[], None] = lambda: None

    def when_ending(self, call: Callable[[], None]) -> None:
        """Call it before the last part of an answer is sent."""
        self._ending = call

    def name(self, request: Scope) -> None:
        """Answer with the request's id, as Ray Serve does."""
        self._named = [(name, value) for name, value in request["headers"] if name.lower() == b"x-request-id"][:1]

    async def receive(self) -> Message:
        """The next message of the client; that it left, when the server is closed."""
        message = await receive_until(self._receive, self._closed)
        if message["type"] == "http.request" and len(self._asked) < _BODY_LIMIT:
            self._asked += message.get("body", b"")
        elif message["type"] == "http.disconnect" and not self._closed.is_set():
            self._left = not self._done
        return message

    async def send(self, message: Message) -> None:
        """Pass a message of the answer on."""
        if message["type"] == "http.response.start":
            if self._named:
                message = {**message, "headers": [*message["headers"], *self._named]}
            kind = dict(message["headers"]).get(b"content-type", b"")
            self._status = message["status"]
            self._stream = kind.startswith(b"text/event-stream")
            self._withheld = self._status in (408, 429, 503) and kind.startswith(b"text/plain")
        elif message["type"] == "http.response.body" and not self._withheld:
            self._tail = (self._tail + message.get("body", b""))[-_TAIL:]
            self._done = not message.get("more_body", False)
            if self._done or (self._stream and self._tail.endswith(_LAST_EVENT)):
                self._ending()
        if not self._withheld:
            await self._send(message)

    async def refuse(self, status: int, code: str, message: str, retry_s: int | None = None) -> None:
        """Answer with an error instead of asking the server."""
        self._status, self._done = status, True
        await _send_error(self._send, status, code, message, retry_s)

    async def complete(self, *, timed_out: bool, timeout_s: float) -> None:
        """Say why, when the server did not answer to the end. A stream that has begun ends with the error as its last event."""
        if self._done:
            return
        if self._left:
            self._status, self._cut = 499, self._status != 0
            return
        code, message = _why(timed_out=timed_out, closed=self._closed.is_set(), timeout_s=timeout_s)
        if self._status == 0 or self._withheld:
            await self.refuse(503, code, message, _RETRY_AWAY_S)
            return
        self._cut = True
        if self._stream:
            event = b"data: " + _error(503, code, message) + b"\n\n"
            with suppress(OSError):
                await self._send({"type": "http.response.body", "body": event, "more_body": False})

    def entry(self, key: str | None, method: str, route: str, seconds: float) -> Entry:
        """What the access log says of it."""
        return Entry(key, method, route, self._status, seconds, self._asked, self._tail, self._cut)


def _why(*, timed_out: bool, closed: bool, timeout_s: float) -> tuple[str, str]:
    """Code and message for an answer that did not come."""
    if closed:
        return "closing", "The server is being stopped."
    if timed_out:
        return "timeout", f"The request was given up after {timeout_s:g} s."
    return "unavailable", "The engine did not answer to the end. Try again."


def _passed_on(scope: Scope, timeout_s: float) -> Scope:
    """The request as Ray Serve gets it: without what is ours alone, with the time it has (0: any), and not for Serve's own routes."""
    headers = [(name, value) for name, value in scope["headers"] if name.lower() not in _OURS_ALONE]
    if timeout_s:
        headers.append((b"x-request-timeout-seconds", f"{timeout_s:g}".encode()))
    passed = {**scope, "headers": headers}
    if scope["path"] == "/-/routes":  # Serve answers this with a table of all servers; under this name the application does.
        passed |= {"path": "/-/routes/", "raw_path": b"/-/routes/"}
    return passed


def _to_engine(scope: Scope, prefix: str) -> Scope:
    """The request as an engine gets it from Ray Serve: without what is ours alone, and with the part of its path that is the server's."""
    headers = [(name, value) for name, value in scope["headers"] if name.lower() not in _OURS_ALONE]
    if not any(name.lower() == b"x-request-id" for name, _ in headers):
        headers.append((b"x-request-id", uuid.uuid4().hex.encode()))
    return {**scope, "headers": headers, "root_path": scope.get("root_path", "") + prefix}


_LAST_EVENT = b"data: [DONE]\n\n"
_TYPES = {401: "invalid_request_error", 404: "invalid_request_error", 429: "rate_limit_error"}


def _error(status: int, code: str, message: str) -> bytes:
    kind = _TYPES.get(status, "server_error")
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()


async def _send_error(send: Send, status: int, code: str, message: str, retry_s: int | None = None) -> None:
    body = _error(status, code, message)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if retry_s is not None:
        headers.append((b"retry-after", str(retry_s).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _naming(send: Send, name: bytes) -> Send:
    """Send with the name of the proxy in the head of the answer."""

    async def named(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (PROXY_HEADER, name)]}
        await send(message)

    return named


def proxy_middleware() -> list[Any]:
    """Have Ray Serve's proxy listen alone, and return what it wraps itself in (see `PROXY_HOOK`)."""
    from starlette.middleware import Middleware

    listen_alone()
    return [Middleware(Gate)]
