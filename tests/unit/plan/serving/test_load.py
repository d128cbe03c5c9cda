"""A load on a planned engine: an idle one, a full one, and one that more reaches than it can answer."""

from dataclasses import replace
from datetime import date

import pytest

from crossmesh.config.planning import PlanSpec
from crossmesh.hardware.catalogue import find_slice
from crossmesh.plan.serving.arrivals import Load, planned_load
from crossmesh.plan.serving.batching import LoadRequest, SimulatedAnswer
from crossmesh.plan.serving.engine import engine_forecast, ttft_bound_s
from crossmesh.plan.serving.forecast import serving_forecast
from crossmesh.plan.serving.load import load_forecast, spread, sustained_rate
from crossmesh.plan.serving.record import serving_record
from plan_points import paper_engine

TODAY = date(2026, 6, 1)


def test_a_request_alone_meets_the_prefill_and_the_decode() -> None:
    point = paper_engine(requests=1)
    engine = engine_forecast(point)
    fared = load_forecast(point, engine, Load((LoadRequest(3.0, 4096, 512),), None, ()))
    assert fared.ttft.p99 == pytest.approx(engine.prefill_s)
    assert fared.ttft.p50 > ttft_bound_s(point, 4096)
    assert fared.tpot.mean == pytest.approx(engine.decode_s, rel=1e-3)
    assert (fared.waiting, fared.preemptions, fared.batch) == (0, 0, 1.0)
    assert fared.busy == pytest.approx(fared.e2e.mean / (3.0 + fared.e2e.mean))
    assert not fared.saturated


@pytest.mark.parametrize(("prompt", "output"), [(4096, 512), (1024, 512), (512, 256), (15360, 512)])
def test_what_is_sustained_is_what_the_sum_says(prompt: int, output: int) -> None:
    # Two ways: prefills and decodes added up, and every step simulated. Parts of prompts share the reading of weights, so it is more.
    point = paper_engine(prompt=prompt, output=output, kv_dtype="fp8_e5m2", step_tokens=1024)
    engine = engine_forecast(point)
    plan = PlanSpec(qps=1.0, duration=20.0, prompt_tokens=prompt, output_tokens=output)
    fared = load_forecast(point, engine, planned_load(plan, 16384))
    assert engine.tokens_per_s <= fared.sustained_tokens_per_s <= 1.15 * engine.tokens_per_s
    assert fared.sustained_qps == pytest.approx(fared.sustained_tokens_per_s / output)


def test_more_than_is_sustained_is_said_and_waits() -> None:
    plan = PlanSpec(workload="serve", qps=60.0, duration=60.0, prompt_tokens=4096)
    point = paper_engine()
    planned = serving_forecast(point, plan, TODAY, planned_load(plan, point.max_model_len))
    assert planned.load.saturated
    assert "60 requests a second are more than the" in planned.warnings[-1]
    assert planned.load.ttft.p99 > 10
    assert planned.tokens_per_s == planned.load.tokens_per_s == pytest.approx(planned.load.sustained_tokens_per_s, rel=0.1)
    calm = replace(plan, qps=2.0)
    load = planned_load(calm, point.max_model_len)
    easy = serving_forecast(point, calm, TODAY, load)
    assert not easy.load.saturated
    assert easy.load.ttft.p99 < 1
    assert easy.tokens_per_s == pytest.approx(len(load.requests) * 512 / 60, rel=0.1)
    # Hours are paid whether the engine is busy or not.
    assert easy.usd_per_million_tokens == pytest.approx(1e6 / easy.tokens_per_s / 3600 * 21.52)


def test_the_record_holds_the_percentiles() -> None:
    plan = PlanSpec(workload="serve", qps=2.0, duration=30.0, prompt_tokens=4096)
    point = paper_engine()
    fared = serving_forecast(point, plan, TODAY, planned_load(plan, point.max_model_len))
    record = serving_record("x", fared)
    assert record.serving["ttft_seconds_p50"] == fared.load.ttft.p50
    assert record.serving["tpot_seconds_p99"] == fared.load.tpot.p99
    assert record.serving["load_qps"] == 2.0
    assert record.tokens_per_s == fared.load.tokens_per_s
    assert "load_qps" not in serving_record("x", serving_forecast(point, PlanSpec(workload="serve"), TODAY)).serving


def test_a_burst_on_gpus_is_what_the_paper_measured() -> None:
    # arXiv 2605.25645, 2xH100: 64 prompts of 128 tokens at once, 256 tokens each: 3,158 tokens/s, first token 475 ms, then 18.4 ms a token.
    point = paper_engine(slice=find_slice("gpu_2xh100"), tp=2, prompt=128, output=256)
    fared = load_forecast(point, engine_forecast(point), Load((LoadRequest(0.0, 128, 256),) * 64, None, ()))
    assert fared.tokens_per_s == pytest.approx(3158, rel=0.15)
    assert fared.ttft.mean == pytest.approx(0.475, rel=0.15)
    assert fared.tpot.mean == pytest.approx(0.0184, rel=0.15)


def test_percentiles_lie_between_neighbours() -> None:
    found = spread([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.mean, found.p50) == (3.0, 3.0)
    assert (found.p90, found.p99) == (pytest.approx(4.6), pytest.approx(4.96))
    assert spread([2.0]).p99 == 2.0


def test_what_is_sustained_leaves_out_filling_and_draining() -> None:
    # From 2 to 8 s the first answer has 6 of its 11 tokens, the second 4 of its 9; the third comes later.
    answers = [
        SimulatedAnswer(LoadRequest(0, 1, 11), 0.0, 10.0, 0),
        SimulatedAnswer(LoadRequest(0, 1, 9), 4.0, 12.0, 0),
        SimulatedAnswer(LoadRequest(0, 1, 5), 9.0, 13.0, 0),
    ]
    assert sustained_rate(answers, 8.0) == pytest.approx((6 + 5) / 6)
