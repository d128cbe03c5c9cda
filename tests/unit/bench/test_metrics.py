"""Figures against values counted by hand, and the saturation search against the planner's simulated engine."""

import pytest

from bench_parts import measurement, outcome
from crossmesh.bench.measured import Measurement, Outcome, error_kind, read_measurement
from crossmesh.bench.metrics import estimate, figures_of, is_good, kept_up, sustained
from crossmesh.bench.saturation import next_rate, saturation
from crossmesh.config.bench import BenchSpec
from crossmesh.plan.serving.batching import LoadRequest, Step, StepLimits, serve
from crossmesh.plan.serving.kv import KvBytes

SLO = BenchSpec(slo_ttft_ms=300, slo_tpot_ms=150)


def test_figures_are_those_counted_by_hand() -> None:
    found = figures_of(measurement(outcome(), outcome(ttft=0.4), outcome(error="Bad Request")), SLO, usd_per_hour=36.0)
    assert (found["requests"], found["failed"]) == (3, 1)
    assert found["requests_per_s"] == 1.0
    assert found["output_tokens_per_s"] == 11.0
    assert found["total_tokens_per_s"] == 111.0
    assert found["ttft_mean_s"] == pytest.approx(0.3)
    assert found["ttft_p50_s"] == pytest.approx(0.3)
    assert found["ttft_p99_s"] == pytest.approx(0.398)
    assert found["tpot_mean_s"] == pytest.approx((0.1 + 0.08) / 2)
    assert found["e2e_p90_s"] == pytest.approx(1.2)
    assert found["in_flight"] == pytest.approx(1.2)
    # One of three within 300 ms to the first token; the failed one counts as not good.
    assert found["goodput_share"] == pytest.approx(1 / 3)
    assert found["goodput_requests_per_s"] == pytest.approx(0.5)
    assert found["usd_per_million_output_tokens"] == pytest.approx(0.01 / 11 * 1e6)


def test_goodput_needs_every_limit_and_no_error() -> None:
    assert is_good(outcome(), SLO)
    assert not is_good(outcome(ttft=0.31), SLO)
    assert not is_good(outcome(e2e=1.8), SLO)
    assert not is_good(outcome(error="x"), SLO)
    assert is_good(outcome(ttft=100.0), BenchSpec())
    assert "goodput_share" not in figures_of(measurement(outcome()), BenchSpec(), None)


def test_a_measurement_without_answers_has_rates_and_no_times() -> None:
    found = figures_of(measurement(outcome(error="Service Unavailable")), SLO, 1.0)
    assert (found["failed"], found["output_tokens_per_s"], found["goodput_share"]) == (1, 0, 0)
    assert "ttft_mean_s" not in found
    assert "usd_per_million_output_tokens" not in found


def test_intervals_are_students() -> None:
    found = estimate([10.0, 11.0, 12.0])
    assert found.mean == 11.0
    assert found.low == pytest.approx(11 - 4.3027 / 3**0.5, abs=1e-3)
    assert estimate([10.0]).low is None
    assert estimate([2.0, 2.0]).high == 2.0


def test_what_the_generator_says_is_read_in_seconds_with_errors_by_kind() -> None:
    said = {
        "duration": 3.0,
        "client_core_share": 0.2,
        "start_times": [50.0, 51.5, 52.0],
        "ttfts": [0.1, 0.0, 0.2],
        "latencies": [1.1, 0.0, 0.2],
        "itls": [[0.5, 0.5], [], []],
        "input_lens": [8, 8, 8],
        "output_lens": [3, 0, 1],
        "errors": ["", 'Traceback (most recent call last):\n  ...\naiohttp.client_exceptions.ClientOSError: [Errno 104] "x"', ""],
    }
    found = read_measurement(
        [LoadRequest(0.0, 8, 3), LoadRequest(1.0, 8, 3), LoadRequest(2.0, 8, 1)], said, cached_tokens=4, prompt_tokens=16
    )
    assert [one.sent_s for one in found.outcomes] == [0.0, 1.5, 2.0]
    assert found.lags_s == (0.0, 0.5, 0.0)
    assert found.errors == {"ClientOSError": 1}
    assert found.cached_share == 0.25
    assert [one.tpot_s for one in found.answered] == [0.5, None]
    assert error_kind("Too Many Requests") == "Too Many Requests"
    assert error_kind("Never received a valid chunk to calculate TTFT.") == "no answer"


def _served(rate: float, count: int = 300) -> Measurement:
    """What the planner's simulated engine answers: 2 sequences at once, 0.1 s a step, so 20 tokens a second, or 2 requests."""
    requests = [LoadRequest(index / rate, 10, 10) for index in range(count)]
    done = serve(requests, StepLimits(1000, 2, 1e9, KvBytes(1.0, 0.0, 0)), lambda step: 0.1 if isinstance(step, Step) else 0.0)
    outcomes = tuple(
        Outcome(one.request, one.request.arrival_s, one.ttft_s, one.e2e_s, (), one.request.prompt, one.request.output, "")
        for one in done.answers
    )
    return Measurement(outcomes, done.end_s, 0.1)


def test_a_server_keeps_up_below_its_capacity_and_not_above() -> None:
    assert kept_up(_served(1.0)) == pytest.approx(1.0, abs=0.02)
    assert kept_up(_served(4.0)) == pytest.approx(0.5, abs=0.02)
    assert kept_up(measurement(outcome(), outcome())) == 1.0


def test_the_search_finds_the_capacity_of_a_simulated_engine() -> None:
    bench, tried = BenchSpec(), {}
    while (rate := next_rate(tried, 0.3)) is not None:
        tried[rate] = sustained(figures_of(_served(rate), bench, None), bench)
    found = saturation(tried)
    assert found.sustained is not None
    assert found.not_sustained is not None
    assert found.sustained <= 2.0 / 0.9
    assert found.not_sustained >= 2.0
    assert found.not_sustained / found.sustained <= 1.15
    assert len(tried) <= 9


def test_a_search_goes_down_where_the_first_rate_is_too_much_and_ignores_luck_above() -> None:
    assert next_rate({4.0: False}, 4.0) == 2.0
    assert next_rate({4.0: False, 2.0: True}, 4.0) == pytest.approx(2.83)
    # A higher rate that passed by luck does not hide the lower one that failed.
    assert saturation({1.0: True, 2.0: False, 4.0: True}).sustained == 1.0
