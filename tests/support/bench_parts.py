"""Measurements made by hand for tests of what is computed from them."""

from typing import Any

from crossmesh.bench.measured import Measurement, Outcome
from crossmesh.plan.serving.batching import LoadRequest


def outcome(
    sent: float = 0.0, ttft: float = 0.2, e2e: float = 1.2, prompt: int = 100, output: int = 11, *, error: str = "", at: float | None = None
) -> Outcome:
    gaps = ((e2e - ttft) / max(output - 1, 1),) * (output - 1)
    return Outcome(LoadRequest(sent if at is None else at, prompt, output), sent, ttft, e2e, gaps, prompt, output, error)


def measurement(*outcomes: Outcome, duration: float = 2.0, core: float = 0.1, **seen: Any) -> Measurement:
    return Measurement(outcomes, duration, core, **seen)
