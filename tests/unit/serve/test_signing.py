"""Every answer of an engine says which server it is, as it was when the request came."""

import asyncio
from typing import Any

from crossmesh.serve.asgi import Message, Receive, Scope, Send
from crossmesh.serve.signing import Signing
from crossmesh.server_identity import HEADER


def test_an_answer_is_signed_with_what_the_engine_was_when_it_was_asked() -> None:
    now = ["a" * 64]
    sent: list[Any] = []

    async def application(_scope: Scope, _receive: Receive, send: Send) -> None:
        now[0] = "b" * 64  # An adapter is loaded meanwhile.
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"y")]})
        await send({"type": "http.response.body", "body": b"{}"})

    async def keep(message: Message) -> None:
        sent.append(message)

    signing = Signing(application, lambda: now[0])
    for _ in range(2):
        asyncio.run(signing({"type": "http"}, keep, keep))
    first, _, second, _ = sent
    assert first["headers"] == [(b"x", b"y"), (HEADER.encode(), b"a" * 64)]
    assert second["headers"][-1] == (HEADER.encode(), b"b" * 64)
