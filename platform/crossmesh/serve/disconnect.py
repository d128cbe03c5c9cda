"""Tells an application that its client left when Ray Serve only cancels the request.

vLLM's routes wait for the answer and for the client's leaving in tasks of their own, which outlive the cancellation of the one that waits:
the engine would compute an answer that nobody gets to its end.
"""

import asyncio

from crossmesh.serve.asgi import App, Message, Receive, Scope, Send, receive_until

_GRACE_S = 5.0
"""How long an application may take to end a request whose client left, before it is cancelled."""


class DisconnectMiddleware:
    """ASGI middleware inside the replica."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application; when this call is cancelled, let it hear `http.disconnect` first."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        left = asyncio.Event()

        async def hear() -> Message:
            return await receive_until(receive, left)

        task = asyncio.ensure_future(self._app(scope, hear, send))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            left.set()
            try:
                await asyncio.wait({task}, timeout=_GRACE_S)
            finally:
                task.cancel()
            raise
