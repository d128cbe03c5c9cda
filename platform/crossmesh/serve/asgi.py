"""Types of ASGI applications and their messages, and waiting for a client that may be told to have left."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


async def receive_until(receive: Receive, ended: asyncio.Event) -> Message:
    """The next message of the client, or once `ended` is set that it left."""
    coming = asyncio.ensure_future(receive())
    ending = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait({coming, ending}, return_when=asyncio.FIRST_COMPLETED)
        return coming.result() if coming.done() else {"type": "http.disconnect"}
    finally:
        for one in (coming, ending):
            if not one.done():
                one.cancel()
