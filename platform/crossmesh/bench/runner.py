"""Measures cells on one server: warm-up, an empty prefix cache, the load, what is kept of it; and what the repeats come to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path

from crossmesh.bench.cells import Cell, Prompts
from crossmesh.bench.endpoint import Lookups, lookups_of, reset_cache
from crossmesh.bench.load import LoadGenerator, Progress, Target
from crossmesh.bench.measured import Measurement, error_kind
from crossmesh.bench.metrics import Estimate, estimates, figures_of, sustained
from crossmesh.bench.plausible import Engines, Flag, flags_of
from crossmesh.bench.saturation import Saturation, next_rate, saturation
from crossmesh.bench.store import Store
from crossmesh.bench.workload import make_workload
from crossmesh.bench.workloads import Rate
from crossmesh.config.bench import BenchSpec
from crossmesh.errors import CrossmeshError
from crossmesh.plan.serving.batching import LoadRequest
from crossmesh.server_identity import Origin

_MEASURED, _WARMUP = "measured", "warmup"


@dataclass(frozen=True)
class CellResult:
    """A cell with all its repeats."""

    cell: Cell
    measurements: tuple[Measurement, ...]
    figures: tuple[dict[str, float], ...]
    """Of each repeat."""
    estimates: dict[str, Estimate]
    flags: tuple[Flag, ...]
    """Of any repeat, each once."""
    notes: tuple[str, ...]

    @property
    def comparable(self) -> bool:
        """Whether it may be compared as it stands."""
        return not self.flags

    @property
    def errors(self) -> dict[str, int]:
        """Failed requests of all repeats by kind."""
        kinds = sorted({kind for one in self.measurements for kind in one.errors})
        return {kind: sum(one.errors.get(kind, 0) for one in self.measurements) for kind in kinds}


@dataclass(frozen=True)
class Found:
    """Where one mix of lengths saturates."""

    prompt: int
    output: int
    rates: Saturation


@dataclass(frozen=True)
class Terms:
    """What a server is judged by."""

    longest: int
    """Tokens of its longest request; 0: not known."""
    engines: Engines | None
    """What it computes with; None where that has no figures."""
    usd_per_hour: float | None


class Bench:
    """Measures cells of `bench` on one server; what `folder` holds already is not measured again."""

    def __init__(self, bench: BenchSpec, folder: Path, generator: LoadGenerator, target: Callable[[], Target], terms: Terms) -> None:
        """`target` is called when something has to be measured, and not before: a server takes minutes to start."""
        self._bench = bench
        self._workload = make_workload(bench)
        self._store = Store(folder)
        self._generator = generator
        self._target = target
        self._terms = terms
        self._origin: Origin | None = None

    def missing(self, cell: Cell) -> list[int]:
        """The repeats that have not been measured."""
        return [repeat for repeat in range(self._bench.repeats) if self._store.read(cell, repeat) is None]

    def measure(self, cell: Cell, repeat: int, progress: Progress) -> Measurement:
        """Measure one repeat of a cell, unless that was done. Raises `ServerChangedError` when another server answers than at the first."""
        kept = self._store.read(cell, repeat)
        if kept is not None:
            return kept
        requests, notes = self._workload.requests(cell, self._bench, repeat, self._terms.longest)
        target, bench = self._target(), self._bench
        origin = self._origin = self._origin or Origin(target.origin, target.key)
        origin.check()
        prompts = self._workload.prompts(cell, bench, _MEASURED, repeat, requests)
        self._warm_up(target, cell, repeat, requests, prompts)
        reset = bench.cache == "cold" and reset_cache(target)
        before = lookups_of(target)
        said = self._generator.send(target, requests, prompts, self._workload.most_in_flight(cell), progress)
        origin.check()
        if not said["completed"]:
            kinds = ", ".join(sorted({error_kind(one) for one in said["errors"] if one}))
            raise CrossmeshError(
                f"{target.origin} answered none of the {len(requests)} requests of {cell.name} ({kinds or 'no reason given'}). "
                "Nothing is kept. It must take token ids as the prompt and ignore_eos on /v1/completions, and this many requests."
            )
        looked_up = _between(before, lookups_of(target))
        seen = {
            "prompt_tokens": looked_up.queried if looked_up else None,
            "cached_tokens": looked_up.found if looked_up else None,
            "reset": reset,
            "notes": notes,
        }
        return self._store.write(cell, repeat, requests, said, seen)

    def result(self, cell: Cell, progress: Progress) -> CellResult:
        """Measure what is missing of a cell and return all of it."""
        bench = self._bench
        found = tuple(self.measure(cell, repeat, progress) for repeat in range(bench.repeats))
        figures = tuple(figures_of(one, bench, self._terms.usd_per_hour) for one in found)
        cold, timed = bench.cache == "cold", self._workload.timed
        flags: dict[str, list[Flag]] = {}
        for one in found:  # What later repeats say of a kind that an earlier one has said is no news.
            for kind, said in groupby(flags_of(one, cold=cold, timed=timed, engines=self._terms.engines), key=lambda flag: flag.kind):
                flags.setdefault(kind, list(said))
        notes = tuple(dict.fromkeys(note for one in found for note in one.notes))
        return CellResult(cell, found, figures, estimates(figures), tuple(chain(*flags.values())), notes)

    def search(self, prompt: int, output: int, progress: Callable[[Cell], Progress]) -> tuple[list[CellResult], Found]:
        """Find the highest rate that is sustained; every rate that is tried is a cell."""
        tried: dict[float, bool] = {}
        results = []
        while (rate := next_rate(tried, self._bench.qps[0])) is not None:
            cell = Rate().cell_at(self._bench, rate, prompt, output)
            results.append(self.result(cell, progress(cell)))
            tried[rate] = all(sustained(figures, self._bench) for figures in results[-1].figures)
        results.sort(key=lambda one: one.cell.value)
        return results, Found(prompt, output, saturation(tried))

    def _warm_up(self, target: Target, cell: Cell, repeat: int, requests: Sequence[LoadRequest], prompts: Prompts) -> None:
        """Send what is not counted: prompts of their own, or, for a warm cache, those that will be measured."""
        if self._bench.cache == "warm":
            first = [replace(one, arrival_s=0.0, output=1) for one in requests]
            self._generator.send(target, first, prompts, self._workload.most_in_flight(cell), _unheard)
            return
        first = [replace(one, arrival_s=0.0) for one in requests[: self._bench.warmup]]
        if first:
            own = self._workload.prompts(cell, self._bench, _WARMUP, repeat, first)
            self._generator.send(target, first, own, self._workload.most_in_flight(cell), _unheard)


def _unheard(_done: int, _total: int) -> None:
    pass


def _between(before: Lookups | None, after: Lookups | None) -> Lookups | None:
    if before is None or after is None or after.queried < before.queried:
        return None
    return Lookups(after.queried - before.queried, after.found - before.found)
