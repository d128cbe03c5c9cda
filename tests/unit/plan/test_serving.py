"""Key/value cache, prefill and decode against counts by hand."""

from dataclasses import replace
from datetime import date

import pytest

from crossmesh.models.families import parse_architecture
from crossmesh.models.random_weights import architecture_config
from crossmesh.plan.model import planned_model
from crossmesh.plan.serving import engine_forecast, kv_bytes, prefill_flops, ttft_bound_s, weight_bytes
from crossmesh.plan.serving_forecast import serving_forecast
from crossmesh.spec.planning import PlanSpec
from plan_points import BASE, paper_engine

LAYERS = 50 * (2 * 5376 * 8192 + 2 * 5376 * 4096 + 3 * 5376 * 21504) + 10 * (2 * 5376 * 16384 + 5376 * 2048 + 3 * 5376 * 21504)


def test_cache_by_hand() -> None:
    kv = kv_bytes(paper_engine())
    # On 8 ranks: a whole one of the 4 global heads of 512, 2 of the 16 sliding heads of 256; keys and values, bfloat16.
    assert (kv.global_per_token, kv.sliding_per_token) == (10 * 2 * 1 * 512 * 2, 50 * 2 * 2 * 256 * 2)
    assert kv.sequence(4608) == 4608 * kv.global_per_token + 1024 * kv.sliding_per_token
    assert kv.sequence(100) == 100 * (kv.global_per_token + kv.sliding_per_token)
    assert kv_bytes(paper_engine(kv_dtype="fp8_e5m2")).global_per_token == kv.global_per_token / 2


def test_layers_that_use_earlier_keys_and_values_keep_none() -> None:
    architecture = parse_architecture(architecture_config("gemma4_e2b"), "gemma4_e2b.json")
    own = [layer for layer in architecture.layers if layer.kv_from is None]
    kv = kv_bytes(paper_engine(model=planned_model(architecture, ()), tp=1))
    assert len(own) < len(architecture.layers)
    assert kv.global_per_token == sum(2 * layer.kv_dim * 2 for layer in own if not layer.window)
    assert kv.sliding_per_token == sum(2 * layer.kv_dim * 2 for layer in own if layer.window)


def test_weights_hold_the_extra_copies() -> None:
    assert weight_bytes(paper_engine()) == pytest.approx(2 * BASE.parameters / 8 + 10 * 5376 * 256 * 2, rel=1e-3)


def test_concurrency_is_what_the_memory_leaves() -> None:
    engine = engine_forecast(paper_engine())
    room = 0.9 * 32 * 2**30 - engine.weights - engine.workspace
    assert engine.sequences == int(room // engine.kv.sequence(4608))
    assert engine_forecast(paper_engine(requests=8)).batch == 8
    assert engine_forecast(paper_engine(max_num_seqs=4)).batch == 4


def test_the_physical_bound_of_the_first_token() -> None:
    # 2 FLOP per parameter and token, 4 per pair and query feature, one row of logits, over 8 chips of 918 TFLOP/s.
    pairs = {0: 15360 * 15361 / 2, 1024: 1024 * 1025 / 2 + (15360 - 1024) * 1024}
    flops = 2 * 15360 * LAYERS + 4 * (50 * 8192 * pairs[1024] + 10 * 16384 * pairs[0]) + 2 * 262_144 * 5376
    engine = paper_engine()
    assert prefill_flops(engine, 15360) == pytest.approx(flops)
    assert ttft_bound_s(engine, 15360) == pytest.approx(flops / (8 * 918e12))
    # The paper's 62 ms for such a prompt is below it: a cold cache would need twice the peak.
    assert ttft_bound_s(engine, 15360) / 0.062 > 2
    # One token: all weights are read once.
    assert ttft_bound_s(engine, 1) == pytest.approx(weight_bytes(engine) / 1638e9)


def test_decode_reads_weights_and_cache() -> None:
    engine = engine_forecast(paper_engine(requests=1))
    assert engine.decode_s > weight_bytes(paper_engine()) / 1638e9
    assert engine.decode_limiter == "weights"
    assert engine_forecast(paper_engine()).decode_limiter == "cache"


def test_the_paper_serving_is_accepted_and_a_rejected_engine_names_the_nearest() -> None:
    plan, today = PlanSpec(workload="serve"), date(2026, 6, 1)
    accepted = serving_forecast(paper_engine(), plan, today)
    assert accepted.fits
    assert accepted.warnings == (
        "serve.tp=8 holds 4 key/value heads of layer 5 and its like 2 times: 26 MiB of weights on each chip, and cache for a whole head.",
    )
    assert accepted.usd_per_million_tokens == pytest.approx(1e6 / accepted.engine.tokens_per_s / 3600 * 21.52)
    rejected = serving_forecast(replace(paper_engine(), tp=1), plan, today)
    assert not rejected.fits
    assert "57.2 are weights" in rejected.reasons[0]
    assert rejected.nearest == "serve.tp=4"
