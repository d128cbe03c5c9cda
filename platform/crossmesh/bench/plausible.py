"""Whether a cell's figures can be what they seem: against physics, and against what else explains them. Pure functions.

A bound is what the chips' published peaks allow, without any efficiency factor, so a cell beyond it is wrong whatever the engine does. An
engine that guesses several tokens ahead reads its weights once for all of them: the bounds of decoding do not hold for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from crossmesh.bench.measured import Measurement
from crossmesh.plan.serving.engine import prefill_flops, ttft_bound_s
from crossmesh.plan.serving.kv import kv_read_bytes
from crossmesh.plan.serving.point import ServingPoint
from crossmesh.plan.serving.step import needed_bytes

IMPOSSIBLE, CACHE, CLIENT, FAILED, LENGTHS = "impossible", "cache_hits", "client", "failed_requests", "lengths"

_CACHED = 0.01
"""Part of the prompts' tokens that a cold cache may hold: blocks that two random prompts share by chance are fewer."""
_CORE = 0.9
"""A client that computes for so much of the time on its one core was late for what came meanwhile."""
_LAG = 0.1
"""Part of the median time to the first token by which requests may be sent late."""
_LAG_S = 0.010
"""A lag that no figure shows."""


@dataclass(frozen=True)
class Flag:
    """Why a cell must not be compared as if it were sound."""

    kind: str
    text: str


@dataclass(frozen=True)
class Seen:
    """What the physical bounds are compared with; None where a source does not say."""

    prompt: int
    """Tokens of a prompt; with several lengths the one that `ttft_s` belongs to."""
    output: int
    ttft_s: float | None = None
    tpot_s: float | None = None
    requests_per_s: float | None = None
    in_flight: float | None = None
    """Requests that are answered at once."""
    cached: int = 0
    """Tokens of the prompt that came from the prefix cache, as far as is known."""
    shared: int = 0
    """Those that the cache may hold: an earlier prompt began with them too."""


@dataclass(frozen=True)
class Engines:
    """What answers, for physics."""

    point: ServingPoint
    """One engine, with the figures of its chips."""
    count: int = 1
    """Engines that share the requests, at most."""
    guesses: bool = False
    """Whether it decodes several tokens ahead."""


def flags_of(measured: Measurement, *, cold: bool, timed: bool, engines: Engines | None) -> tuple[Flag, ...]:
    """Every flag of one measurement.

    Args:
        measured: what was found.
        cold: whether the prefix cache was to be empty.
        timed: whether requests had times to be sent at.
        engines: None where their chips have no figures, as on a CPU: then physics is not asked.
    """
    flags = [*_failed(measured), *_lengths(measured), *_client(measured, timed=timed)]
    if cold and measured.cached_share > _CACHED + measured.shared_share:
        found, of = measured.cached_tokens, measured.prompt_tokens
        meant = f"; of a trace's shared beginnings it may hold {measured.shared_share:.0%}" if measured.shared_share else ""
        flags.append(Flag(CACHE, f"{found:,} of {of:,} prompt tokens came from the prefix cache, which was to be empty{meant}"))
    if engines is not None:
        for one in seen_of(measured, engines):
            flags += [flag for flag in beyond_physics(one, engines.point) if flag not in flags]
    return tuple(flags)


def seen_of(measured: Measurement, engines: Engines) -> tuple[Seen, ...]:
    """The sharpest of a measurement: the request that was fastest for its prompt, the fastest decoding, and the rate of each engine."""
    answered = measured.answered
    if not answered:
        return ()
    rate = len(answered) / measured.duration_s / engines.count
    fastest = min(answered, key=lambda one: one.ttft_s / max(1, one.prompt - one.asked.shared))
    steady = [one for one in answered if one.tpot_s is not None]
    mean_prompt, mean_output = (
        round(sum(sizes) / len(answered)) for sizes in zip(*((one.prompt, one.output) for one in answered), strict=True)
    )
    cached = round(measured.cached_share * fastest.prompt)
    found = [
        Seen(
            fastest.prompt,
            fastest.output,
            ttft_s=fastest.ttft_s,
            cached=min(cached, fastest.prompt - 1),
            shared=min(fastest.asked.shared, fastest.prompt - 1),
        ),
        Seen(
            mean_prompt,
            mean_output,
            requests_per_s=rate,
            in_flight=None if engines.guesses else _most_at_once(measured),
            cached=round(max(measured.cached_share, measured.shared_share) * mean_prompt),
        ),
    ]
    if steady and not engines.guesses:
        quickest = min(steady, key=lambda one: one.tpot_s or 0.0)
        found.append(Seen(quickest.prompt, quickest.output, tpot_s=quickest.tpot_s))
    return tuple(found)


def beyond_physics(seen: Seen, point: ServingPoint) -> tuple[Flag, ...]:
    """The flags of figures that the chips of `point` cannot reach; those that a warm prefix cache would explain say so."""
    peak = point.tp * point.peak
    bandwidth = point.chip.hbm_bytes_per_s
    flags = []
    if seen.ttft_s is not None and seen.ttft_s < (bound := ttft_bound_s(point, seen.prompt, seen.shared)):
        needed = bound / seen.ttft_s
        if seen.cached and seen.ttft_s >= ttft_bound_s(point, seen.prompt, seen.cached):
            flags.append(
                Flag(CACHE, f"first token after {_ms(seen.ttft_s)}: {seen.cached:,} of {seen.prompt:,} tokens were in the prefix cache")
            )
        else:
            flags.append(
                Flag(
                    IMPOSSIBLE,
                    f"first token of {seen.prompt:,} tokens after {_ms(seen.ttft_s)}, which needs {needed:.0%} of peak FLOP/s (at least "
                    f"{_ms(bound)}){_explained(seen, point)}",
                )
            )
    read = needed_bytes(point) + kv_read_bytes(point).sequence(seen.prompt)
    if seen.tpot_s is not None and seen.tpot_s < (least := read / bandwidth):
        flags.append(
            Flag(
                IMPOSSIBLE,
                f"{_ms(seen.tpot_s)} per token, which reads {least / seen.tpot_s:.0%} of memory bandwidth (at least {_ms(least)})",
            )
        )
    if seen.requests_per_s is not None:
        flags += _rates(seen, seen.requests_per_s, point, peak, bandwidth)
    return tuple(flags)


def _rates(seen: Seen, requests_per_s: float, point: ServingPoint, peak: float, bandwidth: float) -> list[Flag]:
    """What all requests together need each second, of the chips' peaks."""
    flags = []
    computed = prefill_flops(point, seen.prompt) - (prefill_flops(point, seen.cached) if seen.cached else 0.0)
    share = requests_per_s * computed / peak
    if share > 1:
        flags.append(Flag(IMPOSSIBLE, f"{requests_per_s:.3g} prompts of {seen.prompt:,} tokens a second need {share:.0%} of peak FLOP/s"))
    if seen.in_flight:
        batch = max(1.0, min(seen.in_flight, point.max_num_seqs))
        tokens_per_s = requests_per_s * max(seen.output - 1, 0)  # The first token comes with the prompt.
        per_token = needed_bytes(point) / batch + kv_read_bytes(point).sequence(seen.prompt)
        share = tokens_per_s * per_token / bandwidth
        if share > 1:
            flags.append(Flag(IMPOSSIBLE, f"{tokens_per_s:,.0f} tokens/s, {batch:.0f} at once, read {share:.0%} of memory bandwidth"))
    return flags


def _explained(seen: Seen, point: ServingPoint) -> str:
    """How much of a prompt a prefix cache must have held for its first token to be possible."""
    low, high = 0, seen.prompt - 1
    if seen.ttft_s is None or seen.ttft_s < ttft_bound_s(point, seen.prompt, high):
        return "; no prefix cache explains it"
    while low < high:
        middle = (low + high) // 2
        if seen.ttft_s >= ttft_bound_s(point, seen.prompt, middle):
            high = middle
        else:
            low = middle + 1
    return f"; possible only with {low:,} or more of them in the prefix cache"


def _failed(measured: Measurement) -> Sequence[Flag]:
    errors = ", ".join(f"{count} {kind}" for kind, count in measured.errors.items())
    return [Flag(FAILED, f"{sum(measured.errors.values())} of {len(measured.outcomes)} requests failed: {errors}")] if errors else []


def _lengths(measured: Measurement) -> Sequence[Flag]:
    wrong = [one for one in measured.answered if not one.exact]
    if not wrong:
        return []
    one = wrong[0]
    return [
        Flag(
            LENGTHS,
            f"{len(wrong)} of {len(measured.answered)} answered requests have other lengths than asked, e.g. {one.prompt}/{one.output} "
            f"tokens instead of {one.asked.prompt}/{one.asked.output}",
        )
    ]


def _client(measured: Measurement, *, timed: bool) -> Sequence[Flag]:
    if measured.client_core_share > _CORE:
        return [Flag(CLIENT, f"the client computed for {measured.client_core_share:.0%} of the time: its one core was the bottleneck")]
    if not timed or not measured.answered:
        return []
    lag = float(np.percentile(measured.lags_s, 95))
    usual = median(one.ttft_s for one in measured.answered)
    if lag > max(_LAG * usual, _LAG_S):
        return [Flag(CLIENT, f"the client sent requests up to {_ms(lag)} late (95th percentile), against {_ms(usual)} to the first token")]
    return []


def _most_at_once(measured: Measurement) -> float:
    """Most requests that were in flight at one moment."""
    events = sorted([(one.sent_s, 1) for one in measured.outcomes] + [(one.sent_s + one.e2e_s, -1) for one in measured.outcomes])
    most = now = 0
    for _, change in events:
        now += change
        most = max(most, now)
    return float(most)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
