"""The requests of a load: at random times with lengths of a distribution, or those of a recorded trace."""

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from crossmesh.config.planning import PlanSpec
from crossmesh.errors import InputError
from crossmesh.plan.serving.batching import LoadRequest
from crossmesh.plan.serving.traces import read_trace
from crossmesh.plan.training.lengths import log_normal

MOST_REQUESTS = 200_000
"""More would take minutes to simulate."""


@dataclass(frozen=True)
class Load:
    """Requests in the order of their arrival, the first one at 0 or later."""

    requests: tuple[LoadRequest, ...]
    qps: float | None
    """Requests a second while they arrive; None where all arrive at once."""
    notes: tuple[str, ...]
    """What was left out."""


def planned_load(plan: PlanSpec, longest: int) -> Load | None:
    """The load that `plan` describes, None where it describes none; no request exceeds `longest` tokens.

    Raises `InputError` for a trace that cannot be read or has no request to simulate, and for more requests than `MOST_REQUESTS`.
    """
    if plan.trace:
        return _of_trace(plan, longest)
    if not plan.qps:
        return None
    if plan.qps * plan.duration > MOST_REQUESTS:
        raise InputError(
            f"plan.qps={plan.qps:g} over plan.duration={plan.duration:g} s are {plan.qps * plan.duration:,.0f} requests. "
            f"Allowed: {MOST_REQUESTS:,}. Shorten plan.duration."
        )
    requests = poisson(plan, longest)
    if not requests:
        raise InputError(f"At plan.qps={plan.qps:g} no request arrives within plan.duration={plan.duration:g} s. Lengthen plan.duration.")
    return Load(requests, plan.qps, ())


def poisson(plan: PlanSpec, longest: int) -> tuple[LoadRequest, ...]:
    """Requests at independent times, `plan.qps` a second on average, over `plan.duration` seconds; the same for the same seed."""
    random = Random(plan.seed)
    requests, now = [], random.expovariate(plan.qps)
    while now < plan.duration:
        output = min(_length(random, plan.output_tokens, plan.output_p99_tokens), longest - 1)
        prompt = min(_length(random, plan.prompt_tokens, plan.prompt_p99_tokens), longest - output)
        requests.append(LoadRequest(now, prompt, output))
        now += random.expovariate(plan.qps)
    return tuple(requests)


def _length(random: Random, mean: int, p99: int) -> int:
    """One length of the log-normal distribution with that mean and 99th percentile; `mean` where `p99` is 0."""
    if not p99 or p99 == mean:
        return mean
    return max(1, round(random.lognormvariate(*log_normal(mean, p99))))


def _of_trace(plan: PlanSpec, longest: int) -> Load:
    trace = read_trace(Path(plan.trace))
    requests = trace.requests
    span = requests[-1].arrival_s
    if plan.qps:
        # As many intervals as requests but one, so that the mean rate is the one asked for.
        if not span:
            raise InputError(f"plan.trace={plan.trace}: all arrive at once, so plan.qps={plan.qps:g} cannot stretch it. Leave it out.")
        factor = (len(requests) - 1) / span / plan.qps
        requests = tuple(replace(request, arrival_s=request.arrival_s * factor) for request in requests)
    timely = tuple(request for request in requests if not plan.duration or request.arrival_s < plan.duration)[:MOST_REQUESTS]
    kept = tuple(request for request in timely if request.prompt + request.output <= longest)
    if not kept:
        raise InputError(f"plan.trace={plan.trace} has no request of at most serve.max_model_len={longest} tokens. Raise it.")
    notes = list(trace.notes)
    if trace.block:
        notes.append("Prompts of the trace begin alike; what a prefix cache would save of them is not simulated.")
    if len(timely) < len(requests):
        notes.append(
            f"Simulated: the first {len(timely):,} of the trace's {len(requests):,} requests, those of plan.duration={plan.duration:g} s. "
            f"plan.duration=0 takes all, up to {MOST_REQUESTS:,}."
        )
    if len(kept) < len(timely):
        refused = len(timely) - len(kept)
        notes.append(f"{refused:,} requests of the trace are over serve.max_model_len={longest} and left out, as if refused.")
    seconds = timely[-1].arrival_s
    return Load(kept, (len(kept) - 1) / seconds if seconds else None, tuple(notes))
