"""A request that Ray Serve cancels, and an application that waits for its client's leaving in a task of its own, as vLLM's do."""

import asyncio
from contextlib import suppress

from crossmesh.serve.asgi import Message, Receive, Scope, Send
from crossmesh.serve.disconnect import DisconnectMiddleware


def test_an_application_hears_that_the_client_left_and_ends_what_it_computes() -> None:
    said: list[str] = []

    async def compute() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            said.append("stopped computing")
            raise

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        computing = asyncio.create_task(compute())
        leaving = asyncio.create_task(_left(receive))
        _, pending = await asyncio.wait([computing, leaving], return_when=asyncio.FIRST_COMPLETED)
        for one in pending:
            one.cancel()
        with suppress(asyncio.CancelledError):
            await computing

    async def silent() -> Message:
        await asyncio.sleep(60)
        return {"type": "http.request"}

    async def main() -> None:
        request = asyncio.create_task(DisconnectMiddleware(application)({"type": "http"}, silent, _nowhere))
        await asyncio.sleep(0.05)
        request.cancel()
        await asyncio.wait([request])
        assert request.cancelled()

    asyncio.run(main())
    assert said == ["stopped computing"]


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _nowhere(message: Message) -> None:
    del message
