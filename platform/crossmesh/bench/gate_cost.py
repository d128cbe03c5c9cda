"""What our gate's own code costs a request: the gate around an application that does nothing, timed in this process.

Everything else that our server adds to an engine is Ray Serve's way of a request; it shows between servers (`overhead.py`).
"""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from crossmesh.serve.admission import Admission
from crossmesh.serve.asgi import App, Message, Receive, Scope, Send
from crossmesh.serve.gate import Gate
from crossmesh.signals import run_async

_REQUESTS = 200
_KEY, _DIGEST = b"Bearer key", "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"
"""A key and its SHA-256."""


@dataclass(frozen=True)
class GateCost:
    """Seconds, medians."""

    first_s: float
    """To the first token."""
    token_s: float
    """For each further one."""


def gate_cost(tokens: int) -> GateCost:
    """Time the gate with answers of `tokens`, streamed."""
    with tempfile.TemporaryDirectory() as folder:
        return run_async(_cost(max(tokens, 2), Path(folder) / "access.jsonl"))


async def _cost(tokens: int, log: Path) -> GateCost:
    rules = Admission(prefix="", keys={"key": _DIGEST}, capacity=1, timeout_s=60.0, log=str(log))
    plain = await _times(_answering(tokens))
    gated = await _times(Gate(_answering(tokens), lambda: {"": rules}, dict))
    first, whole = (median(one[index] for one in gated) - median(one[index] for one in plain) for index in (0, 1))
    return GateCost(first, (whole - first) / (tokens - 1))


def _answering(tokens: int) -> App:
    async def answer(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for index in range(tokens):
            await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": index < tokens - 1})

    return answer


async def _times(app: App) -> list[tuple[float, float]]:
    """Seconds to the first part of each answer, and to its end."""
    scope: Scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [(b"authorization", _KEY)]}
    found = []
    for _ in range(_REQUESTS):
        arrived: list[float] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message: Message, arrived: list[float] = arrived) -> None:
            if message["type"] == "http.response.body":
                arrived.append(time.perf_counter())

        began = time.perf_counter()
        await app(scope, receive, send)
        found.append((arrived[0] - began, arrived[-1] - began))
    return found
