"""The workload of `docs/extending.md`, added by a package: its cells, its requests and its prompts are measured as ours are."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import workload_package
from bench_parts import Generator
from crossmesh.bench import runner
from crossmesh.bench.load import Target
from crossmesh.bench.runner import Bench, Terms
from crossmesh.bench.store import identity_of
from crossmesh.bench.workload import cells_of, make_workload
from crossmesh.config.bench import BenchSpec
from crossmesh.errors import InputError


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BenchSpec:
    workload_package.install(tmp_path / "installed", monkeypatch)
    options = {"size": 2, "period_s": 5.0, "system_tokens": 40}
    return BenchSpec(load="waves", options=options, prompt_tokens=(100,), output_tokens=(8,), requests=5)


def test_its_requests_come_in_waves_and_begin_alike(bench: BenchSpec) -> None:
    (cell,) = cells_of(bench)
    assert cell.name == "waves2_100in_8out"
    workload = make_workload(bench)
    requests, notes = workload.requests(cell, bench, 0, 128)
    assert [(request.arrival_s, request.shared) for request in requests] == [(0.0, 0), (0.0, 32), (5.0, 32), (5.0, 32), (10.0, 32)]
    assert notes == ()
    first, *others = workload.prompts(cell, bench, "measured", 0, requests).ids
    assert len(first) == 7
    assert all(ids[:2] == first[:2] and not set(ids[2:]) & set(first) for ids in others)
    with pytest.raises(InputError, match=r"108 tokens, over serve\.max_model_len=100"):
        workload.requests(cell, bench, 0, 100)


def test_its_options_make_other_measurements_and_a_wrong_one_is_named(bench: BenchSpec) -> None:
    same = identity_of({"weights": "a"}, bench)
    assert same == identity_of({"weights": "a"}, bench)
    assert same != identity_of({"weights": "a"}, BenchSpec(load="waves", options={"size": 3}))
    with pytest.raises(InputError, match=re.escape("does not fit bench.load='waves'") + ".*Allowed options: size, period_s, system_tokens"):
        cells_of(BenchSpec(load="waves", options={"sise": 3}))
    with pytest.raises(InputError, match=r"bench\.load='wave'.*Did you mean 'waves'"):
        BenchSpec(load="wave")


def test_it_is_measured_and_judged_by_its_times(bench: BenchSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "reset_cache", lambda _: True)
    monkeypatch.setattr(runner, "lookups_of", lambda _: None)
    monkeypatch.setattr(runner, "Origin", lambda *_: SimpleNamespace(check=lambda: None))
    generator = Generator()
    runs = Bench(bench, tmp_path, generator, lambda: Target("http://here", "base"), Terms(512, None, None))
    (cell,) = cells_of(bench)
    result = runs.result(cell, lambda _done, _total: None)
    warm_up, measured = generator.sent[:2]
    assert (len(warm_up[0]), len(measured[0]), measured[1].block, measured[2]) == (4, 5, 16, 0)
    assert "kept_up" in result.estimates  # As of every load whose requests have times of their own.
