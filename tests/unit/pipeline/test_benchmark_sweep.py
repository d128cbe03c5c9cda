"""A benchmark as a point of a sweep: it costs from its server's start on, and nothing when all was measured before."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, Group

from crossmesh.config.bench import BenchSpec
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.console import Stage
from crossmesh.errors import BudgetReachedError, InputError
from crossmesh.pipeline import benchmark_sweep
from crossmesh.pipeline.benchmark import Done, Sweeping, counting
from crossmesh.sweep.work import Hooks
from crossmesh.train.events import Event, StartEvent

ANY: Any = None


@pytest.mark.parametrize("measured_before", [True, False])
def test_what_was_measured_before_is_skipped_and_starts_nothing(monkeypatch: pytest.MonkeyPatch, *, measured_before: bool) -> None:
    received: list[Event] = []
    given: list[Sweeping] = []

    def benchmark(_spec: ExperimentSpec, _console: object, sweeping: Sweeping) -> Done:
        given.append(sweeping)
        if not measured_before:
            sweeping.on_start()
        return Done({"run_id": "r"}, Group(), Path())

    monkeypatch.setattr(benchmark_sweep, "benchmark", benchmark)
    hooks = Hooks(received.append, lambda: None, "parent", force=False)
    ran = benchmark_sweep.Benchmarking().run(ExperimentSpec(), ANY, hooks)
    assert (ran.run_id, ran.skipped, given[0].parent) == ("r", measured_before, "parent")
    assert [type(event) for event in received] == ([] if measured_before else [StartEvent])


def test_a_sweep_stops_a_benchmark_at_its_next_piece_of_progress() -> None:
    def spent() -> None:
        raise BudgetReachedError("spent")

    with pytest.raises(BudgetReachedError):
        counting(Stage(Console(quiet=True)), 4, spent)(1, 4)


def test_a_comparison_with_a_bare_server_is_no_point_of_a_sweep() -> None:
    spec = ExperimentSpec(bench=BenchSpec(against="bare", load="concurrency"))
    with pytest.raises(InputError, match=r"bench\.against is for one benchmark alone"):
        benchmark_sweep.Benchmarking().gate(spec, ANY)
