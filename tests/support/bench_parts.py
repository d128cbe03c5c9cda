"""Measurements made by hand for tests of what is computed from them, and a load generator that measures nothing."""

from collections.abc import Sequence
from typing import Any

from crossmesh.bench.cells import Prompts
from crossmesh.bench.load import Progress, Target
from crossmesh.bench.measured import Measurement, Outcome
from crossmesh.plan.serving.batching import LoadRequest


def outcome(
    sent: float = 0.0, ttft: float = 0.2, e2e: float = 1.2, prompt: int = 100, output: int = 11, *, error: str = "", at: float | None = None
) -> Outcome:
    gaps = ((e2e - ttft) / max(output - 1, 1),) * (output - 1)
    return Outcome(LoadRequest(sent if at is None else at, prompt, output), sent, ttft, e2e, gaps, prompt, output, error)


def measurement(*outcomes: Outcome, duration: float = 2.0, core: float = 0.1, **seen: Any) -> Measurement:
    return Measurement(outcomes, duration, core, **seen)


class Generator:
    """Answers every request after `ttft` and in `ttft` + 1 s; one of each load fails from repeat `fails` on."""

    def __init__(self, ttft: float = 0.25, *, failing: bool = False) -> None:
        self.sent: list[tuple[Sequence[LoadRequest], Prompts, int]] = []
        self._ttft, self._failing = ttft, failing

    def send(self, target: Target, requests: Sequence[LoadRequest], prompts: Prompts, most: int, progress: Progress) -> dict[str, Any]:
        self.sent.append((requests, prompts, most))
        progress(len(requests), len(requests))
        count = len(requests)
        errors = ["Too Many Requests" if self._failing and index == 0 else "" for index in range(count)]
        return {
            "duration": 2.0,
            "client_core_share": 0.1,
            "start_times": [one.arrival_s for one in requests],
            "ttfts": [self._ttft] * count,
            "latencies": [self._ttft + 1.0] * count,
            "itls": [[0.1] * 10] * count,
            "input_lens": [one.prompt for one in requests],
            "output_lens": [0 if error else one.output for one, error in zip(requests, errors, strict=True)],
            "completed": errors.count(""),
            "errors": errors,
        }
