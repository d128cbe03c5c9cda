"""Figures of a measurement and their intervals over repeats: pure functions. Times are in seconds, rates per second."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crossmesh.bench.measured import Measurement, Outcome
from crossmesh.config.bench import WORKLOADS, BenchSpec
from crossmesh.metrics import GOODPUT, OUTPUT_TOKENS_PER_S, USD_PER_MILLION_OUTPUT_TOKENS

PERCENTILES = (50, 90, 95, 99)
CONFIDENCE = 0.95
_FILLING = 0.25
"""Part of the time of arrivals in which the engine fills and nothing is counted (`kept_up`)."""
_KEEPS_UP = 0.9
"""Part of what arrives that a server must make meanwhile for a rate to be sustained; arrivals at random vary by so much."""

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Estimate:
    """A figure over repeats."""

    mean: float
    low: float | None
    """Bounds of the 95% interval of the mean, by Student's t; None with one repeat."""
    high: float | None


def figures_of(measured: Measurement, bench: BenchSpec, usd_per_hour: float | None) -> dict[str, float]:
    """Every figure of one measurement by name. Of a measurement without answers only rates, shares and counts are left."""
    answered = measured.answered
    good = sum(is_good(one, bench) for one in answered)
    output = sum(one.output for one in answered)
    rate = output / measured.duration_s
    figures = {
        "requests": float(len(measured.outcomes)),
        "failed": float(len(measured.outcomes) - len(answered)),
        "duration_s": measured.duration_s,
        "requests_per_s": len(answered) / measured.duration_s,
        OUTPUT_TOKENS_PER_S.name: rate,
        "total_tokens_per_s": rate + sum(one.prompt for one in answered) / measured.duration_s,
        "in_flight": sum(one.e2e_s for one in answered) / measured.duration_s,
        "client_core_share": measured.client_core_share,
    }
    if measured.prompt_tokens is not None:
        figures["cached_share"] = measured.cached_share
    if bench.slo:
        figures |= {GOODPUT.name: good / measured.duration_s, "goodput_share": good / len(measured.outcomes)}
    if WORKLOADS.load(bench.load).timed:
        figures["kept_up"] = kept_up(measured)
    if usd_per_hour is not None and rate:
        figures[USD_PER_MILLION_OUTPUT_TOKENS.name] = usd_per_hour / 3600 / rate * 1e6
    spreads = {
        "ttft": [one.ttft_s for one in answered],
        "tpot": [one.tpot_s for one in answered if one.tpot_s is not None],
        "itl": [gap for one in answered for gap in one.gaps_s],
        "e2e": [one.e2e_s for one in answered],
    }
    for name, values in spreads.items():
        if values:
            figures[f"{name}_mean_s"] = float(np.mean(values))
            figures |= {f"{name}_p{part}_s": float(np.percentile(values, part)) for part in PERCENTILES}
    return figures


def is_good(one: Outcome, bench: BenchSpec) -> bool:
    """Whether a request was answered within every limit that `bench` sets."""
    limits = ((bench.slo_ttft_ms, one.ttft_s), (bench.slo_tpot_ms, one.tpot_s or 0.0), (bench.slo_e2e_ms, one.e2e_s))
    return not one.error and all(not limit or 1000 * seconds <= limit for limit, seconds in limits)


def kept_up(measured: Measurement) -> float:
    """Tokens of answers that were made while requests arrived, over those that were asked for meanwhile; far below 1: the queue grew.

    The first quarter of the time of arrivals, in which the engine fills, is not counted. Of a load that arrives at once it is 1.
    """
    until = measured.outcomes[-1].sent_s
    start = _FILLING * until
    asked = sum(one.asked.output for one in measured.outcomes if start <= one.sent_s < until)
    made = sum(_made(one, until) - _made(one, start) for one in measured.answered)
    return made / asked if asked else 1.0


def _made(one: Outcome, until_s: float) -> float:
    """Tokens of an answer by `until_s`, those after the first evenly in time."""
    first, end = one.sent_s + one.ttft_s, one.sent_s + one.e2e_s
    if end <= until_s:
        return one.output
    if first > until_s:
        return 0.0
    return 1 + (one.output - 1) * (until_s - first) / (end - first)


def sustained(figures: Figures, bench: BenchSpec) -> bool:
    """Whether a server sustains a rate: it keeps up, nothing fails and, where there are limits, enough requests are within them."""
    good = figures.get("goodput_share", 1.0) >= bench.slo_share
    return good and not figures["failed"] and figures["kept_up"] >= _KEEPS_UP


def estimates(repeats: Sequence[Figures]) -> dict[str, Estimate]:
    """Mean and interval of every figure that all repeats have."""
    names = [name for name in repeats[0] if all(name in one for one in repeats)]
    return {name: estimate([one[name] for one in repeats]) for name in names}


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and 95% interval of `values`, taken as independent."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Estimate(mean, None, None)
    from statsmodels.stats.weightstats import DescrStatsW

    if min(values) == max(values):
        return Estimate(mean, mean, mean)
    low, high = DescrStatsW(np.asarray(values)).tconfint_mean(alpha=1 - CONFIDENCE)
    return Estimate(mean, float(low), float(high))
