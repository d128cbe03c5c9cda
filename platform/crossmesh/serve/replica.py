"""The Serve deployment: one replica is one vLLM engine with its OpenAI routes. The gate stands in front of the proxy.

The engine is `ray.serve.llm`'s (`LLMConfig`, `LLMServer`, `LLMServer.engine`), and the application is the one vLLM itself builds for that
engine; Ray Serve calls it inside the replica ("late-bound ingress"), so a request makes one hop from the proxy and adapters are
plain vLLM LoRA modules. A server of one replica also listens at a socket for the gate on its node (`direct.py`). This module is imported
by the driver too: whatever needs vllm is imported inside the replica.
"""

import asyncio
from pathlib import Path
from typing import Any

from ray import serve

from crossmesh.serve.admission import server_name, write_way
from crossmesh.serve.asgi import App
from crossmesh.serve.direct import DirectServer
from crossmesh.serve.disconnect import DisconnectMiddleware
from crossmesh.serve.loading import HotLoading
from crossmesh.serve.vllm.settings import EngineSettings

_LOG_LINES = 40
_LOG_BYTES = 64 << 10


@serve.ingress()
class ModelServer:
    """Base model and adapters in one engine.

    Args:
        settings: the engine.
        loading: what may be loaded while the engine runs.
    """

    def __init__(self, settings: EngineSettings, loading: HotLoading) -> None:
        self._settings = settings
        self._loading = loading
        self._server: Any = None
        self._direct: DirectServer | None = None

    async def __serve_build_asgi_app__(self) -> App:
        """Start the engine and return vLLM's own OpenAI application for it (Ray Serve calls this once, at start)."""
        from crossmesh.serve.vllm.engine_vllm import openai_app, start_engine

        try:
            self._server = await start_engine(self._settings)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is raised again with more to read
            # The reason stands in the engine's output, not in this error ("see root cause above"), and Serve passes only the error on.
            raise RuntimeError(f"{error}\nLast lines of the engine's output:\n{_own_output()}") from None
        app = DisconnectMiddleware(await openai_app(self._server, self._settings, self._loading))
        if self._settings.deployment.get("num_replicas") == 1:  # Ray Serve counts requests where it decides on replicas by them.
            self._direct = DirectServer(app)
            await self._direct.start()
            await asyncio.to_thread(write_way, *self._names(), self._direct.path)
        return app

    @staticmethod
    def _names() -> tuple[str, str]:
        """The name of the server (`serve.name`), and of this replica of it."""
        context = serve.get_replica_context()
        return server_name(context.app_name), context.replica_id.unique_id

    async def check_health(self) -> None:
        """Raise when the engine is dead, so that Ray Serve replaces the replica."""
        await self._server.check_health()

    async def __del__(self) -> None:
        """End the engine's processes with the replica, once what came the short way is answered."""
        from crossmesh.serve.vllm.engine_vllm import stop_engine

        try:
            if self._direct is not None:
                await asyncio.to_thread(write_way, *self._names(), None)
                await self._direct.stop()
        finally:
            if self._server is not None:
                stop_engine(self._server)


def _own_output() -> str:
    """The last lines of this process's output, children included (Ray redirects both streams to files of the session)."""
    lines: list[str] = []
    for descriptor in (1, 2):
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        if not path.is_file():
            continue
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _LOG_BYTES))
            lines += stream.read().decode(errors="replace").splitlines()[-_LOG_LINES:]
    return "\n".join(lines)
