"""Measuring against a generator that is not there: what is sent, what is kept, what is done again, what servers are compared by."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench_parts import Generator
from crossmesh.bench import runner
from crossmesh.bench.cells import Cell
from crossmesh.bench.endpoint import Lookups, read_lookups
from crossmesh.bench.gate_cost import gate_cost
from crossmesh.bench.load import Target
from crossmesh.bench.overhead import overhead_of
from crossmesh.bench.results import Outcomes, as_json, metrics_of, write_files
from crossmesh.bench.runner import Bench, Terms
from crossmesh.bench.servers import bare_arguments, with_defaults
from crossmesh.bench.store import identity_of, trace_digest
from crossmesh.bench.workload import cells_of
from crossmesh.config.bench import BenchSpec
from crossmesh.environments import environment
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.serve.vllm.settings import CPU_VARIABLES, EngineSettings

TERMS = Terms(512, None, 3.6)


@pytest.fixture(autouse=True)
def caches(monkeypatch: pytest.MonkeyPatch) -> list[Target]:
    """A server that empties its cache when asked, and finds nothing there."""
    reset: list[Target] = []
    monkeypatch.setattr(runner, "reset_cache", lambda target: not reset.append(target))
    monkeypatch.setattr(runner, "lookups_of", lambda target: Lookups(100 * len(reset), 0))
    monkeypatch.setattr(runner, "Origin", lambda *_: SimpleNamespace(check=lambda: None))
    return reset


def bench_of(spec: BenchSpec, folder: Path, generator: Generator) -> Bench:
    return Bench(spec, folder, generator, lambda: Target("http://here", "base"), TERMS)


def unheard(done: int, total: int) -> None:
    pass


def test_a_measurement_is_warmed_up_with_other_prompts_on_an_empty_cache(tmp_path: Path, caches: list[Target]) -> None:
    spec, generator = BenchSpec(load="concurrency", concurrency=(4,), requests=8, repeats=2, warmup=3), Generator()
    result = bench_of(spec, tmp_path, generator).result(cells_of(spec)[0], unheard)
    assert [len(requests) for requests, _, _ in generator.sent] == [3, 8, 3, 8]
    assert {most for _, _, most in generator.sent} == {4}
    everything = [one for _, prompts, _ in generator.sent for one in prompts.ids]
    assert len(set(everything)) == len(everything)
    assert len(caches) == 2
    assert result.comparable
    assert result.estimates["ttft_p50_s"].mean == pytest.approx(0.25)
    assert result.estimates["usd_per_million_output_tokens"].mean == pytest.approx(1e-3 / (8 * 64 / 2) * 1e6)


def test_a_warm_cache_has_seen_every_prompt(tmp_path: Path, caches: list[Target]) -> None:
    spec, generator = BenchSpec(load="burst", requests=4, repeats=1, cache="warm"), Generator()
    bench_of(spec, tmp_path, generator).result(cells_of(spec)[0], unheard)
    (first, before, _), (_, measured, _) = generator.sent
    assert before == measured
    assert {one.output for one in first} == {1}
    assert not caches


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    spec, cell = BenchSpec(load="burst", requests=4, repeats=3), cells_of(BenchSpec(load="burst", requests=4))[0]
    first = bench_of(spec, tmp_path, Generator())
    first.measure(cell, 0, unheard)
    assert first.missing(cell) == [1, 2]
    (tmp_path / "cells" / "burst_128in_64out_4" / "0.json").write_text("{", encoding="utf-8")
    assert first.missing(cell) == [0, 1, 2]  # Damaged: as if it were not there.
    whole = first.result(cell, unheard)
    again = Generator()
    assert bench_of(spec, tmp_path, again).result(cell, unheard) == whole
    assert again.sent == []


def test_a_load_that_was_refused_whole_is_no_measurement(tmp_path: Path) -> None:
    spec = BenchSpec(load="burst", requests=1, repeats=1)
    cell = cells_of(spec)[0]
    bench = bench_of(spec, tmp_path, Generator(failing=True))
    with pytest.raises(CrossmeshError, match=r"answered none of the 1 requests .*Too Many Requests.*ignore_eos"):
        bench.measure(cell, 0, unheard)
    assert bench.missing(cell) == [0]


def test_a_flagged_cell_is_kept_apart_everywhere(tmp_path: Path) -> None:
    spec = BenchSpec(load="burst", requests=4, repeats=2)
    result = bench_of(spec, tmp_path, Generator(failing=True)).result(cells_of(spec)[0], unheard)
    assert [flag.kind for flag in result.flags] == ["failed_requests"]
    assert all(name.startswith("flagged/burst_128in_64out/") for name in metrics_of([result]))
    outcomes = Outcomes({}, (result,), (), ())
    values = as_json(outcomes, {"benchmark": "x"})
    assert values["flagged"] == ["burst_128in_64out"]
    assert values["cells"][0]["errors"] == {"Too Many Requests": 2}
    write_files(outcomes, values, tmp_path / "result")
    made = {file.name for file in (tmp_path / "result").iterdir()}
    assert made == {"benchmark.json", "measurements.parquet", "requests.parquet", "times.png"}
    import pyarrow.parquet as pq

    rows = pq.read_table(tmp_path / "result" / "requests.parquet").to_pylist()
    assert [row["error"] for row in rows].count("Too Many Requests") == 2
    assert len(rows) == 8


def test_an_overhead_is_of_neighbours_and_of_sound_cells_only(tmp_path: Path) -> None:
    spec = BenchSpec(load="concurrency", concurrency=(4,), requests=4, repeats=2)
    cell = Cell("concurrency", 4.0, 128, 64, 4)
    times = {"bare": 0.2, "serve_llm": 0.3, "crossmesh": 0.25}
    results = {name: bench_of(spec, tmp_path / name, Generator(ttft)).result(cell, unheard) for name, ttft in times.items()}
    found = overhead_of(results)
    assert found is not None
    assert found.concurrency == 4
    assert found.ours_over_bare.mean == 1.0
    assert (found.engine_s.mean, found.ingress_s.mean, found.ours_s.mean) == pytest.approx((0.2, 0.1, -0.05))
    assert found.bare == "bare"
    slower = {
        key: replace(results["bare"], figures=tuple({**one, "output_tokens_per_s": rate} for one in results["bare"].figures))
        for key, rate in (("bare", 10.0), ("bare_in_process", 40.0))
    }
    best = overhead_of({**results, **slower})
    assert best is not None
    assert (best.bare, best.ours_over_bare.mean) == ("bare_in_process", pytest.approx(found.tokens_per_s["crossmesh"].mean / 40.0))
    failed = bench_of(spec, tmp_path / "failed", Generator(failing=True)).result(cell, unheard)
    assert overhead_of({**results, "bare": failed}) is None


def test_a_search_measures_rates_until_it_knows(tmp_path: Path) -> None:
    spec, generator = BenchSpec(search=True, qps=(1.0,), requests=8, repeats=1, slo_ttft_ms=100), Generator()
    cells, found = bench_of(spec, tmp_path, generator).search(128, 64, lambda cell: unheard)
    assert found.rates.sustained is None  # 250 ms to the first token are too much at any rate.
    assert [one.cell.value for one in cells] == sorted(one.cell.value for one in cells)


def test_measurements_of_another_server_or_other_terms_are_not_taken() -> None:
    server = {"weights": "a"}
    same = identity_of(server, BenchSpec())
    assert same == identity_of(server, BenchSpec(qps=(2.0,), repeats=9, slo_ttft_ms=5))
    others = [BenchSpec(seed=1), BenchSpec(cache="warm"), BenchSpec(warmup=0), BenchSpec(burstiness=2.0)]
    assert len({same, identity_of({"weights": "b"}, BenchSpec()), *(identity_of(server, bench) for bench in others)}) == 6


def test_a_trace_is_known_by_what_it_holds_and_how_it_is_played(tmp_path: Path) -> None:
    for name, line in (("one", "0,8,8"), ("copy", "0,8,8"), ("other", "1,8,8")):
        (tmp_path / f"{name}.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{line}\n")

    def identity(name: str, **scales: float) -> str:
        return identity_of({}, BenchSpec(load="trace", trace=str(tmp_path / f"{name}.csv"), **scales))

    assert identity("one") == identity("copy")
    assert len({identity("one"), identity("other"), identity("one", time_scale=2.0), identity("one", length_scale=2.0)}) == 4
    assert trace_digest(BenchSpec()) == ""
    with pytest.raises(InputError, match=r"bench\.trace=.*gone\.csv does not exist"):
        identity("gone")


def test_seconds_count_by_the_requests_that_they_come_to(tmp_path: Path) -> None:
    few, more = (cells_of(BenchSpec(qps=(4.0,), requests=8, seconds=seconds))[0] for seconds in (0.0, 10.0))
    assert (few.requests, more.requests) == (8, 40)
    generator = Generator()
    bench_of(BenchSpec(qps=(4.0,), requests=8, repeats=1), tmp_path, generator).result(few, unheard)
    longer = bench_of(BenchSpec(qps=(4.0,), requests=8, seconds=10.0, repeats=1), tmp_path, generator)
    assert longer.missing(more) == [0]


def test_lookups_are_summed_over_engines() -> None:
    text = (
        "# HELP vllm:prefix_cache_queries_total x\n"
        'vllm:prefix_cache_queries_total{engine="0",model_name="base"} 1.0e+03\n'
        'vllm:prefix_cache_queries_total{engine="1",model_name="base"} 24.0\n'
        'vllm:prefix_cache_hits_total{engine="0",model_name="base"} 16.0\n'
        'vllm:external_prefix_cache_hits_total{engine="0"} 99.0\n'
    )
    assert read_lookups(text) == Lookups(1024, 16)
    assert read_lookups("up 1\n") is None


def test_a_bare_server_has_the_engine_arguments_of_ours() -> None:
    config = {
        "model_loading_config": {"model_id": "base", "model_source": "/model"},
        "engine_kwargs": {"dtype": "bfloat16", "max_num_seqs": 16, "enforce_eager": True, "enable_prefix_caching": False},
    }
    arguments = bare_arguments(EngineSettings("serve/vllm-cpu", config, {}, {}, {}, "cpu", 1), 1234)
    assert arguments[:8] == ["--model", "/model", "--served-model-name", "base", "--host", "127.0.0.1", "--port", "1234"]
    assert arguments[8:] == ["--dtype", "bfloat16", "--max-num-seqs", "16", "--enforce-eager", "--no-enable-prefix-caching"]


def test_a_server_with_vllms_defaults_has_none_of_our_thread_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    variables = {**CPU_VARIABLES, "HF_HUB_OFFLINE": "1"}
    found = with_defaults(environment("serve/vllm-cpu"), EngineSettings("serve/vllm-cpu", {}, {}, {}, variables, "cpu", 1))
    assert found["HF_HUB_OFFLINE"] == "1"
    assert (
        not {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "VLLM_CPU_OMP_THREADS_BIND", "MALLOC_TRIM_THRESHOLD_"} & found.keys()
    )


def test_the_gate_alone_costs_less_than_a_millisecond() -> None:
    cost = gate_cost(16)
    assert 0 < cost.first_s < 0.01
    assert cost.token_s < 0.001
