"""The workloads of crossmesh: arrivals at a rate, all at once, so many in flight, and a recorded trace."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from crossmesh.bench.cells import Cell, Prompts, prompt_id
from crossmesh.bench.workload import Workload, check_length
from crossmesh.config.bench import BenchSpec
from crossmesh.errors import InputError
from crossmesh.plan.serving.batching import LoadRequest
from crossmesh.plan.serving.traces import Trace, read_trace, shared_tokens


class _Grid(Workload):
    """Every value with every length of prompt and answer; all requests of a cell are alike and, unless overridden, there at once."""

    def values(self, bench: BenchSpec) -> Sequence[float]:
        del bench
        return (0.0,)

    def cells(self, bench: BenchSpec) -> Sequence[Cell]:
        lengths = [(prompt, output) for prompt in bench.prompt_tokens for output in bench.output_tokens]
        return tuple(self.cell_at(bench, value, prompt, output) for prompt, output in lengths for value in self.values(bench))

    def cell_at(self, bench: BenchSpec, value: float, prompt: int, output: int) -> Cell:
        return Cell(bench.load, float(value), prompt, output, bench.requests)

    def requests(self, cell: Cell, bench: BenchSpec, repeat: int, longest: int) -> tuple[tuple[LoadRequest, ...], tuple[str, ...]]:
        check_length(cell, longest)
        return tuple(LoadRequest(time, cell.prompt, cell.output) for time in self.times(cell, bench, repeat)), ()

    def times(self, cell: Cell, bench: BenchSpec, repeat: int) -> Sequence[float]:
        del bench, repeat
        return [0.0] * cell.requests


class Rate(_Grid):
    """`bench.qps` requests a second, whatever becomes of them."""

    timed = True
    axis = "requests/s"

    def values(self, bench: BenchSpec) -> Sequence[float]:
        """Each of `qps`; of a search the first."""
        return bench.qps[:1] if bench.search else bench.qps

    def cell_at(self, bench: BenchSpec, value: float, prompt: int, output: int) -> Cell:
        """Return the cell at a rate, with requests for at least `bench.seconds`."""
        return Cell(bench.load, float(value), prompt, output, max(bench.requests, math.ceil(bench.seconds * value)))

    def times(self, cell: Cell, bench: BenchSpec, repeat: int) -> Sequence[float]:
        """Arrivals of their own for each repeat."""
        return arrivals(cell.value, bench.burstiness, cell.requests, bench.seed + repeat)


class Burst(_Grid):
    """Everything at once."""


class Concurrency(_Grid):
    """`bench.concurrency` requests are always in flight."""

    axis = "requests in flight"

    def values(self, bench: BenchSpec) -> Sequence[float]:
        """Each of `concurrency`."""
        return bench.concurrency

    def most_in_flight(self, cell: Cell) -> int:
        """As many as the cell says."""
        return int(cell.value)


class TraceReplay(Workload):
    """The requests of a recorded trace (`bench.trace`), by their times and lengths."""

    timed = True

    def cells(self, bench: BenchSpec) -> Sequence[Cell]:
        """One."""
        return (Cell(bench.load, 0.0, 0, 0, bench.requests),)

    def requests(self, cell: Cell, bench: BenchSpec, repeat: int, longest: int) -> tuple[tuple[LoadRequest, ...], tuple[str, ...]]:
        """Return the trace's first requests, scaled, without those that are too long; the first arrives at 0."""
        del repeat
        trace = read_trace(Path(bench.trace))
        scaled = tuple(_scaled(request, trace, bench) for request in trace.requests[: cell.requests])
        kept = tuple(request for request in scaled if not longest or request.prompt + request.output <= longest)
        if not kept:
            raise InputError(f"bench.trace={bench.trace} has no request of at most serve.max_model_len={longest} tokens. Raise it.")
        notes = list(trace.notes)
        if left_out := len(scaled) - len(kept):
            notes.append(f"{left_out} of the trace's {len(scaled)} requests are over serve.max_model_len={longest}: left out.")
        first = kept[0].arrival_s
        block = _block(trace, bench)
        shared = shared_tokens(kept, block) if block else [0] * len(kept)
        if any(shared):
            tokens = sum(request.prompt for request in kept)
            notes.append(f"{sum(shared):,} of {tokens:,} prompt tokens are the beginning of an earlier prompt, as the trace's hashes say.")
        moved = (replace(request, arrival_s=request.arrival_s - first, shared=same) for request, same in zip(kept, shared, strict=True))
        return tuple(moved), tuple(notes)

    def prompts(self, cell: Cell, bench: BenchSpec, part: str, repeat: int, requests: Sequence[LoadRequest]) -> Prompts:
        """What a trace hashes alike is alike within one measurement, and nowhere else."""
        block = _block(read_trace(Path(bench.trace)), bench) if any(request.hashes for request in requests) else 0
        if not block:
            return super().prompts(cell, bench, part, repeat, requests)
        ids = []
        for index, request in enumerate(requests):
            blocks = -(-request.prompt // block)
            own = [f"{index}.{number}" for number in range(len(request.hashes), blocks)]  # Blocks that the trace says nothing of.
            told = [*(f"#{hashed}" for hashed in request.hashes), *own][:blocks]
            ids.append(tuple(prompt_id(cell, bench, part, repeat, block_of) for block_of in told))
        return Prompts(tuple(ids), block)


def arrivals(rate: float, burstiness: float, count: int, seed: int) -> list[float]:
    """Seconds at which `count` requests arrive, the first at 0, `rate` a second on average.

    Times between them have a gamma distribution of shape `burstiness`, as in `vllm bench serve`, and are stretched to the exact rate.
    """
    random = Random(seed)
    times = [0.0]
    for _ in range(count - 1):
        times.append(times[-1] + random.gammavariate(burstiness, 1 / (rate * burstiness)))
    stretch = (count - 1) / rate / times[-1] if times[-1] else 1.0
    return [time * stretch for time in times]


def _scaled(request: LoadRequest, trace: Trace, bench: BenchSpec) -> LoadRequest:
    """A request of a trace, faster and shorter; a hashed prompt is shortened block by block, so that equal blocks stay equal."""
    block, prompt = _block(trace, bench), request.prompt
    scaled = prompt // trace.block * block + round(prompt % trace.block * block / trace.block) if block else _tokens(prompt, bench)
    return LoadRequest(request.arrival_s * bench.time_scale, max(1, scaled), _tokens(request.output, bench), hashes=request.hashes)


def _tokens(tokens: int, bench: BenchSpec) -> int:
    return max(1, round(tokens * bench.length_scale))


def _block(trace: Trace, bench: BenchSpec) -> int:
    """Tokens of a hashed block as it is sent; 0 where the trace has none."""
    return _tokens(trace.block, bench) if trace.block else 0
