"""What cannot be is flagged, what can is not: by hand, against the planner's bounds, and on the paper's own table."""

from dataclasses import replace

import pytest

from bench_parts import measurement, outcome
from crossmesh.bench.measured import Outcome
from crossmesh.bench.plausible import Engines, Flag, Seen, beyond_physics, flags_of
from crossmesh.hardware.catalogue import find_slice
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.weights.random_weights import architecture_config
from crossmesh.paper.serving import judged_cells, serving_json
from crossmesh.plan.model import planned_model
from crossmesh.plan.serving.engine import ttft_bound_s
from crossmesh.plan.serving.point import ServingPoint
from crossmesh.plan.serving.step import needed_bytes


@pytest.fixture(scope="module")
def point() -> ServingPoint:
    model = planned_model(parse_architecture(architecture_config("gemma4_31b"), "gemma4_31b.json"), ())
    return ServingPoint(model, find_slice("gpu_2xh100"), 2, "bfloat16", "bfloat16", 16384, 256, 0.9, 4096, 512, 0, 8192)


def kinds(*flags: Flag) -> list[str]:
    return [flag.kind for flag in flags]


def test_the_papers_impossible_cells_are_flagged_and_no_others() -> None:
    flagged = {cell.name: flags for cell, flags in judged_cells() if flags}
    assert sorted(flagged) == ["gpu_2xh100 15360/512", "tpu_v6e_8 15360/512"]
    for flags in flagged.values():
        assert kinds(*flags) == ["impossible"]
        assert "in the prefix cache" in flags[0].text
    # 62 and 99 ms for about 16,000 tokens: the paper's 209% and 486% of peak, with attention's products counted.
    assert "needs 220% of peak" in flagged["tpu_v6e_8 15360/512"][0].text
    assert "needs 511% of peak" in flagged["gpu_2xh100 15360/512"][0].text
    said = serving_json()
    assert [cell["comparable"] for cell in said["cells"]].count(False) == 2
    assert len(said["cells"]) == 12


def test_a_first_token_before_its_bound_is_impossible_or_the_caches(point: ServingPoint) -> None:
    bound = ttft_bound_s(point, 4096)
    assert not beyond_physics(Seen(4096, 512, ttft_s=1.01 * bound), point)
    found = beyond_physics(Seen(4096, 512, ttft_s=0.5 * bound), point)
    assert kinds(*found) == ["impossible"]
    assert "needs 200% of peak" in found[0].text
    assert kinds(*beyond_physics(Seen(4096, 512, ttft_s=0.5 * bound, cached=3000), point)) == ["cache_hits"]
    # Half of the prompt from the cache does not explain a tenth of the time.
    assert kinds(*beyond_physics(Seen(4096, 512, ttft_s=0.1 * bound, cached=2048), point)) == ["impossible"]


def test_no_engine_decodes_faster_than_it_reads(point: ServingPoint) -> None:
    least = needed_bytes(point) / point.chip.hbm_bytes_per_s
    assert least == pytest.approx(0.0092, rel=0.03)  # 31 GB on each chip at 3.35 TB/s.
    assert kinds(*beyond_physics(Seen(128, 256, tpot_s=0.9 * least), point)) == ["impossible"]
    assert not beyond_physics(Seen(128, 256, tpot_s=1.1 * least), point)
    # 4 at once get at most 4 tokens for each time that all weights are read.
    too_many = 5 / least / 511
    assert kinds(*beyond_physics(Seen(128, 512, requests_per_s=too_many, in_flight=4), point)) == ["impossible"]
    assert not beyond_physics(Seen(128, 512, requests_per_s=too_many, in_flight=8), point)


def test_more_prompts_than_the_peak_computes_are_impossible(point: ServingPoint) -> None:
    most = 1 / ttft_bound_s(point, 8192)
    assert kinds(*beyond_physics(Seen(8192, 1, requests_per_s=1.2 * most), point)) == ["impossible"]
    assert not beyond_physics(Seen(8192, 1, requests_per_s=0.9 * most), point)
    assert not beyond_physics(Seen(8192, 1, requests_per_s=1.2 * most, cached=4096), point)


def test_a_measurement_is_judged_by_its_sharpest_request(point: ServingPoint) -> None:
    slow, fast = outcome(ttft=2.0, e2e=8.0, prompt=4096, output=100), outcome(ttft=0.01, e2e=6.0, prompt=4096, output=100)
    assert not flags_of(measurement(slow, slow, duration=16.0), cold=True, timed=False, engines=Engines(point))
    assert kinds(*flags_of(measurement(slow, fast, duration=16.0), cold=True, timed=False, engines=Engines(point))) == ["impossible"]
    # Two engines share what is too much for one; one that guesses ahead has no bound on decoding.
    burst = measurement(*(outcome(ttft=1.0, e2e=5.0, prompt=8192, output=2) for _ in range(32)), duration=5.0)
    assert kinds(*flags_of(burst, cold=True, timed=False, engines=Engines(point))) == ["impossible"]
    assert not flags_of(burst, cold=True, timed=False, engines=Engines(point, count=2))
    quick = measurement(outcome(ttft=2.0, e2e=2.1, prompt=4096, output=100), duration=2.1)
    assert kinds(*flags_of(quick, cold=True, timed=False, engines=Engines(point))) == ["impossible"]
    assert not flags_of(quick, cold=True, timed=False, engines=Engines(point, guesses=True))
    # Without figures of the chips physics is not asked.
    assert not flags_of(measurement(slow, fast, duration=16.0), cold=True, timed=False, engines=None)


def test_cache_hits_failures_and_other_lengths_are_flagged() -> None:
    hit = measurement(outcome(), prompt_tokens=1000, cached_tokens=300)
    assert kinds(*flags_of(hit, cold=True, timed=False, engines=None)) == ["cache_hits"]
    assert not flags_of(hit, cold=False, timed=False, engines=None)
    assert not flags_of(measurement(outcome(), prompt_tokens=10_000, cached_tokens=32), cold=True, timed=False, engines=None)
    failed = flags_of(measurement(outcome(), outcome(error="Too Many Requests")), cold=True, timed=False, engines=None)
    assert [(flag.kind, flag.text) for flag in failed] == [("failed_requests", "1 of 2 requests failed: 1 Too Many Requests")]
    short = flags_of(measurement(replace(outcome(), output=7)), cold=True, timed=False, engines=None)
    assert kinds(*short) == ["lengths"]
    assert "100/7 tokens instead of 100/11" in short[0].text


def test_a_client_that_was_late_or_busy_is_flagged() -> None:
    assert kinds(*flags_of(measurement(outcome(), core=0.95), cold=True, timed=False, engines=None)) == ["client"]
    late = measurement(outcome(), outcome(sent=1.5, at=1.0))
    assert kinds(*flags_of(late, cold=True, timed=True, engines=None)) == ["client"]
    assert not flags_of(late, cold=True, timed=False, engines=None)  # Nothing said when to send it.
    assert not flags_of(measurement(outcome(), outcome(sent=1.005, at=1.0)), cold=True, timed=True, engines=None)


def test_beginnings_that_a_trace_shares_may_come_from_the_cache_and_no_more_than_those(point: ServingPoint) -> None:
    fast = 1.05 * ttft_bound_s(point, 4096, 3072)
    first = outcome(prompt=4096, ttft=1.0, e2e=20.0)
    again = outcome(sent=5.0, prompt=4096, ttft=fast, e2e=20.0)
    shared = replace(again, asked=replace(again.asked, shared=3072))

    def flags(second: Outcome, found: int) -> list[str]:
        measured = measurement(first, second, duration=25.0, prompt_tokens=8192, cached_tokens=found)
        return kinds(*flags_of(measured, cold=True, timed=False, engines=Engines(point)))

    assert flags(shared, 3072) == []
    assert flags(shared, 6000) == ["cache_hits"]
    assert "cache_hits" in flags(again, 3072)
    assert flags(replace(shared, ttft_s=0.2 * fast), 3072) == ["impossible"]
