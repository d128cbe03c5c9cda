"""What one measurement of a cell found, request by request, read from what the load generator said. Pure values."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crossmesh.plan.serving.batching import LoadRequest

NO_ANSWER = "no answer"


@dataclass(frozen=True)
class Outcome:
    """One request; times in seconds."""

    asked: LoadRequest
    sent_s: float
    """Since the first request was sent."""
    ttft_s: float
    """Time to the first token."""
    e2e_s: float
    """Time to the last token."""
    gaps_s: tuple[float, ...]
    """Between parts of the answer as they arrived: inter-token latencies."""
    prompt: int
    """Tokens as the server counted them."""
    output: int
    error: str
    """Kind of the error; empty when the request was answered."""

    @property
    def tpot_s(self) -> float | None:
        """Time per token after the first; None with one token."""
        return (self.e2e_s - self.ttft_s) / (self.output - 1) if self.output > 1 else None

    @property
    def exact(self) -> bool:
        """Whether prompt and answer have the tokens that were asked for."""
        return (self.prompt, self.output) == (self.asked.prompt, self.asked.output)


@dataclass(frozen=True)
class Measurement:
    """All requests of one measurement, and what else was seen meanwhile."""

    outcomes: tuple[Outcome, ...]
    duration_s: float
    """From the first request to the last answer, as the generator has it."""
    client_core_share: float
    """Part of one core that the generator used."""
    prompt_tokens: int | None = None
    """Tokens of prompts that the engine looked up in its prefix cache; None where the server does not say."""
    cached_tokens: int | None = None
    """Those of them that it found there."""
    reset: bool = False
    """Whether the server emptied its prefix cache before."""
    notes: tuple[str, ...] = ()

    @property
    def answered(self) -> tuple[Outcome, ...]:
        """Requests without an error."""
        return tuple(one for one in self.outcomes if not one.error)

    @property
    def errors(self) -> dict[str, int]:
        """How many requests failed, by kind."""
        return dict(sorted(Counter(one.error for one in self.outcomes if one.error).items()))

    @property
    def cached_share(self) -> float:
        """Part of the prompts' tokens that came from the prefix cache, as far as the server says."""
        return (self.cached_tokens or 0) / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def shared_share(self) -> float:
        """Part of the prompts' tokens that an earlier prompt begins with too, as the trace asks: a cold cache may find those."""
        return sum(one.asked.shared for one in self.outcomes) / max(1, sum(one.asked.prompt for one in self.outcomes))

    @property
    def lags_s(self) -> tuple[float, ...]:
        """How much later than planned each request was sent, the first one being on time."""
        return tuple(one.sent_s - (one.asked.arrival_s - self.outcomes[0].asked.arrival_s) for one in self.outcomes)


def read_measurement(requests: Sequence[LoadRequest], said: Mapping[str, Any], **seen: Any) -> Measurement:
    """The measurement that the generator's result `said` describes; `seen` are further fields of `Measurement`."""
    first = said["start_times"][0]
    outcomes = tuple(
        Outcome(
            asked=asked,
            sent_s=said["start_times"][index] - first,
            ttft_s=said["ttfts"][index],
            e2e_s=said["latencies"][index],
            gaps_s=tuple(said["itls"][index]),
            prompt=said["input_lens"][index],
            output=said["output_lens"][index],
            error=_error_of(said, index),
        )
        for index, asked in enumerate(requests)
    )
    return Measurement(outcomes, said["duration"], said["client_core_share"], **seen)


def _error_of(said: Mapping[str, Any], index: int) -> str:
    error = error_kind(said["errors"][index])
    return error or ("" if said["output_lens"][index] else NO_ANSWER)


def error_kind(text: str) -> str:
    """The kind of an error: an HTTP reason as it is (`Too Many Requests`), of a traceback the exception's name."""
    lines = text.strip().splitlines()
    if not lines:
        return ""
    if not lines[0].startswith("Traceback"):
        return NO_ANSWER if lines[0].startswith("Never received") else lines[0].strip()[:60]
    return lines[-1].partition(":")[0].rpartition(".")[2].strip()
