"""What a load of requests meets on an engine: time to the first token, time per token, tokens a second, and when it is too much.

The load is simulated request by request (`batching.py`) with the modelled time of every step (`step.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from statistics import fmean, quantiles

from crossmesh.plan.serving.arrivals import Load
from crossmesh.plan.serving.batching import SimulatedAnswer, serve
from crossmesh.plan.serving.engine import EngineForecast, limits
from crossmesh.plan.serving.point import ServingPoint
from crossmesh.plan.serving.step import step_cost
from crossmesh.plan.training.efficiency import efficiency

_SUSTAINED_REQUESTS, _SUSTAINED_BATCHES = 1000, 8
"""Requests that show what an engine sustains: so many, and so many times those that it computes at once."""


@dataclass(frozen=True)
class Spread:
    """Seconds over all requests."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True)
class LoadForecast:
    """How a load fares."""

    requests: int
    qps: float | None
    """Requests a second that arrive; None where all arrive at once."""
    ttft: Spread
    """Time to the first token, waiting included."""
    tpot: Spread | None
    """Time per token after the first; None where all answers are one token."""
    e2e: Spread
    """From arrival to the last token."""
    tokens_per_s: float
    """Tokens of answers, from the start of the load to its last token."""
    prompt_tokens_per_s: float
    requests_per_s: float
    batch: float
    """Sequences that are computed at once, on average while there are any."""
    waiting: int
    """Most requests that waited at once."""
    preemptions: int
    busy: float
    """Part of the time in which the engine computes."""
    sustained_qps: float
    """Requests of this mix a second that the engine sustains: what it does while some always wait."""
    sustained_tokens_per_s: float
    """Tokens of answers a second then."""

    @property
    def saturated(self) -> bool:
        """Whether more arrives than the engine sustains: the queue, and with it the first token's time, grows as long as the load lasts."""
        return self.qps is not None and self.qps > self.sustained_qps


def load_forecast(point: ServingPoint, engine: EngineForecast, load: Load) -> LoadForecast:
    """Simulate `load` on the engine, and once more its mix of requests with always some of them waiting."""
    bounds, cost = limits(point, engine), step_cost(point, efficiency(point.slice.device))
    served = serve(load.requests, bounds, cost.seconds)
    many = max(_SUSTAINED_REQUESTS, _SUSTAINED_BATCHES * point.max_num_seqs)
    burst = serve([replace(request, arrival_s=0.0) for request in islice(cycle(load.requests), many)], bounds, cost.seconds)
    sustained = sustained_rate(burst.answers, burst.queued_until_s)
    output = fmean(request.output for request in load.requests)
    return LoadForecast(
        requests=len(load.requests),
        qps=load.qps,
        ttft=spread([answer.ttft_s for answer in served.answers]),
        tpot=spread(tpots) if (tpots := [answer.tpot_s for answer in served.answers if answer.tpot_s is not None]) else None,
        e2e=spread([answer.e2e_s for answer in served.answers]),
        tokens_per_s=sum(request.output for request in load.requests) / served.end_s,
        prompt_tokens_per_s=sum(request.prompt for request in load.requests) / served.end_s,
        requests_per_s=len(load.requests) / served.end_s,
        batch=served.sequence_s / served.busy_s,
        waiting=served.waiting,
        preemptions=sum(answer.preemptions for answer in served.answers),
        busy=served.busy_s / served.end_s,
        sustained_qps=sustained / output,
        sustained_tokens_per_s=sustained,
    )


def sustained_rate(answers: Sequence[SimulatedAnswer], until_s: float) -> float:
    """Tokens of answers a second while some requests waited, the last of them up to `until_s`; the first quarter fills the engine."""
    start_s = until_s / 4
    return sum(_made(answer, until_s) - _made(answer, start_s) for answer in answers) / (until_s - start_s)


def _made(answer: SimulatedAnswer, until_s: float) -> float:
    """Tokens of an answer by `until_s`, its tokens evenly in time."""
    if answer.end_s <= until_s:
        return answer.request.output
    if answer.first_s > until_s:
        return 0.0
    return 1 + (answer.request.output - 1) * (until_s - answer.first_s) / (answer.end_s - answer.first_s)


def spread(values: Sequence[float]) -> Spread:
    """Mean and percentiles, between neighbours on a straight line, as `vllm bench serve` reports them."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0], values[0])
    cuts = quantiles(values, n=100, method="inclusive")
    return Spread(fmean(values), cuts[49], cuts[89], cuts[98])
