"""Signs every answer of an engine with the digest of its fingerprint, so that whoever asks knows which server has answered."""

from collections.abc import Callable

from crossmesh.serve.asgi import App, Message, Receive, Scope, Send
from crossmesh.server_identity import HEADER


class Signing:
    """ASGI middleware inside the replica.

    Args:
        app: the application of the engine.
        digest: what the engine is at this moment.
    """

    def __init__(self, app: App, digest: Callable[[], str]) -> None:
        self._app = app
        self._digest = digest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, with one more header in the head of its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # As the request arrives: an adapter that is loaded meanwhile is not the one that answers.
        signature = HEADER.encode(), self._digest().encode()

        async def signed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], signature]}
            await send(message)

        await self._app(scope, receive, signed)
