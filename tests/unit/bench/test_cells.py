"""The grid, the arrivals and the prompts of a benchmark: the same for the same seed, exact in rate and length."""

from itertools import pairwise
from pathlib import Path
from statistics import pstdev
from typing import Any

import pytest

from crossmesh.bench.cells import prompt_id
from crossmesh.bench.workload import cells_of, make_workload
from crossmesh.bench.workloads import Rate, TraceReplay, arrivals
from crossmesh.config.bench import BenchSpec
from crossmesh.config.compose import compose_spec
from crossmesh.errors import InputError


def test_a_grid_is_every_load_with_every_prompt_and_answer() -> None:
    cells = cells_of(BenchSpec(qps=(1.0, 4.0), prompt_tokens=(512, 1024), output_tokens=(256,)))
    assert [cell.name for cell in cells] == ["qps1_512in_256out", "qps4_512in_256out", "qps1_1024in_256out", "qps4_1024in_256out"]


def test_the_papers_grid_covers_its_rates_and_lengths(conf: Path) -> None:
    bench = compose_spec(conf, "bench=paper").bench
    cells = cells_of(bench)
    assert len(cells) == 7 * 5 * 2
    assert {cell.value for cell in cells} == {1, 2, 4, 8, 16, 32, 64}
    assert (min(cell.prompt for cell in cells), max(cell.prompt for cell in cells)) == (512, 15360)
    assert Rate().cell_at(bench, 64, 512, 256).requests == 64 * 60  # 64 a second would be over after one second with 64 requests.


def test_arrivals_keep_their_rate_exactly_and_their_shape_on_average() -> None:
    times = arrivals(4.0, 1.0, 401, seed=3)
    assert times == arrivals(4.0, 1.0, 401, seed=3) != arrivals(4.0, 1.0, 401, seed=4)
    assert times[0] == 0
    assert times[-1] == pytest.approx(100.0)
    gaps = [after - before for before, after in pairwise(times)]
    assert pstdev(gaps) == pytest.approx(0.25, rel=0.15)  # Poisson: as large as their mean.
    even = arrivals(4.0, 100.0, 401, seed=3)
    assert pstdev([after - before for before, after in pairwise(even)]) < 0.05


def test_no_two_prompts_are_alike_and_repeats_have_their_own() -> None:
    bench = BenchSpec()
    cell = cells_of(bench)[0]
    ids = {prompt_id(cell, bench, part, repeat, index) for part in ("measured", "warmup") for repeat in range(3) for index in range(64)}
    assert len(ids) == 2 * 3 * 64
    assert prompt_id(cell, bench, "measured", 0, 0) != prompt_id(cell, BenchSpec(seed=1), "measured", 0, 0)


def test_what_does_not_fit_is_refused_before_anything_is_sent() -> None:
    bench = BenchSpec(prompt_tokens=(500,), output_tokens=(100,))
    with pytest.raises(InputError, match=r"600 tokens, over serve\.max_model_len=512"):
        make_workload(bench).requests(cells_of(bench)[0], bench, 0, 512)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.5000000,4000,44\n2023-11-16 18:15:48.5000000,400,100\n2023-11-16 18:15:52.5000000,200,10\n"
        "2023-11-16 18:15:53.5000000,100,10\n"
    )
    return file


def test_a_trace_is_replayed_by_its_times_and_lengths_scaled(trace: Path) -> None:
    bench = BenchSpec(load="trace", trace=str(trace), time_scale=0.5, length_scale=0.25, requests=3)
    requests, notes = make_workload(bench).requests(cells_of(bench)[0], bench, 0, 512)
    # The first one is too long even so; the next one then begins at 0.
    assert [(one.arrival_s, one.prompt, one.output) for one in requests] == [(0.0, 100, 25), (2.0, 50, 2)]
    assert notes == ("1 of the trace's 3 requests are over serve.max_model_len=512: left out.",)


@pytest.fixture
def hashed(tmp_path: Path) -> Path:
    file = tmp_path / "mooncake.jsonl"
    file.write_text(
        '{"timestamp": 27000, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 48]}\n'
        '{"timestamp": 30500, "input_length": 1030, "output_length": 26, "hash_ids": [46, 47, 99]}\n'
        '{"timestamp": 31000, "input_length": 600, "output_length": 10, "hash_ids": [47, 46]}\n'
    )
    return file


def test_prompts_of_a_hashed_trace_begin_alike_as_far_as_its_hashes_do(hashed: Path) -> None:
    bench = BenchSpec(load="trace", trace=str(hashed), requests=3)
    cell = cells_of(bench)[0]
    requests, notes = TraceReplay().requests(cell, bench, 0, 0)
    assert [(one.arrival_s, one.prompt, one.output, one.shared) for one in requests] == [
        (0.0, 1100, 52, 0),
        (3.5, 1030, 26, 1024),
        (4.0, 600, 10, 0),  # The same blocks in another order are another prompt.
    ]
    assert notes == ("1,024 of 2,730 prompt tokens are the beginning of an earlier prompt, as the trace's hashes say.",)
    prompts = TraceReplay().prompts(cell, bench, "measured", 0, requests)
    first, second, third = prompts.ids
    assert (prompts.block, len(first), len(second), len(third)) == (512, 3, 3, 2)
    assert first[:2] == second[:2] == third[::-1]
    assert first[2] != second[2]
    # Another repeat, and the warm-up, find nothing of it in a cache.
    others = [TraceReplay().prompts(cell, bench, "measured", 1, requests), TraceReplay().prompts(cell, bench, "warmup", 0, requests)]
    assert not {*first, *second, *third} & {number for one in others for ids in one.ids for number in ids}


def test_a_hashed_trace_is_shortened_block_by_block(hashed: Path) -> None:
    bench = BenchSpec(load="trace", trace=str(hashed), requests=3, length_scale=0.1)
    cell = cells_of(bench)[0]
    requests, _ = TraceReplay().requests(cell, bench, 0, 0)
    assert [(one.prompt, one.shared) for one in requests] == [(2 * 51 + 8, 0), (2 * 51 + 1, 102), (51 + 9, 0)]
    prompts = TraceReplay().prompts(cell, bench, "measured", 0, requests)
    assert prompts.block == 51
    assert [len(ids) for ids in prompts.ids] == [3, 3, 2]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"load": "trace"}, r"bench\.trace=''.*a file of requests with bench\.load=trace"),
        ({"load": "burst", "search": True}, r"bench\.search=True.*bench\.load=burst"),
        ({"against": "bare"}, r"bench\.against='bare'.*bench\.load=concurrency"),
        ({"qps": ()}, r"bench\.qps=\[\].*one or more"),
        ({"qps": (1.0, 0.0)}, r"bench\.qps=0\.0.*positive"),
        ({"concurrency": (4, 4)}, r"bench\.concurrency=\[4, 4\].*each value once"),
        ({"load": "brust"}, r"bench\.load='brust'.*Did you mean 'burst'"),
        ({"url": "localhost:8000"}, r"bench\.url='localhost:8000'.*an OpenAI base URL"),
    ],
)
def test_what_cannot_be_names_its_key(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        BenchSpec(**values)
