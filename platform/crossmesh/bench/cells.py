"""The cells of a benchmark and the requests of each: pure functions of the spec, the same for the same seed.

A request is when it arrives and how long prompt and answer are (`plan.batching.Request`, as the planner simulates it). What its prompt says
is random, and told apart by an id: no two prompts of a benchmark are alike.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from crossmesh.errors import InputError
from crossmesh.files import canonical_json, digest_text
from crossmesh.plan.arrivals import read_trace
from crossmesh.plan.batching import Request
from crossmesh.spec.bench import BURST, CONCURRENCY, RATE, TRACE, BenchSpec

_ID_DIGITS = 12


@dataclass(frozen=True)
class Cell:
    """One point of a benchmark."""

    load: str
    value: float
    """Requests a second (`rate`), or requests in flight (`concurrency`); 0 otherwise."""
    prompt: int
    """Tokens of each prompt; 0: as the trace says."""
    output: int
    requests: int

    @property
    def name(self) -> str:
        """What it is called in tables, files and metrics."""
        value = {RATE: f"qps{self.value:g}", CONCURRENCY: f"concurrency{self.value:g}"}.get(self.load, self.load)
        return f"{value}_{self.prompt}in_{self.output}out" if self.prompt else value

    @property
    def most_in_flight(self) -> int:
        """Requests that the client lets be in flight at once; 0: any number."""
        return int(self.value) if self.load == CONCURRENCY else 0


def cells_of(bench: BenchSpec) -> tuple[Cell, ...]:
    """Every cell that `bench` asks for; of a search the first for each prompt and answer."""
    if bench.load == TRACE:
        return (Cell(TRACE, 0.0, 0, 0, bench.requests),)
    values: Sequence[float] = {RATE: bench.qps[:1] if bench.search else bench.qps, CONCURRENCY: bench.concurrency, BURST: (0.0,)}[
        bench.load
    ]
    return tuple(
        cell_at(bench, value, prompt, output) for prompt in bench.prompt_tokens for output in bench.output_tokens for value in values
    )


def cell_at(bench: BenchSpec, value: float, prompt: int, output: int) -> Cell:
    """The cell of `bench` at a rate or a concurrency."""
    enough = math.ceil(bench.seconds * value) if bench.load == RATE else 0
    return Cell(bench.load, float(value), prompt, output, max(bench.requests, enough))


def requests_of(cell: Cell, bench: BenchSpec, repeat: int, longest: int) -> tuple[tuple[Request, ...], tuple[str, ...]]:
    """The requests of one measurement of `cell` in the order of arrival, and what was left out.

    Raises `InputError` where a request is longer than the server's `longest` tokens (0: not known), or a trace has none that fits.
    """
    if cell.load == TRACE:
        return _of_trace(cell, bench, longest)
    if longest and cell.prompt + cell.output > longest:
        raise InputError(
            f"bench.prompt_tokens={cell.prompt} with bench.output_tokens={cell.output} are {cell.prompt + cell.output} tokens, over "
            f"serve.max_model_len={longest}. Raise it, or shorten them."
        )
    times = [0.0] * cell.requests
    if cell.load == RATE:
        times = arrivals(cell.value, bench.burstiness, cell.requests, bench.seed + repeat)
    return tuple(Request(time, cell.prompt, cell.output) for time in times), ()


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


def _of_trace(cell: Cell, bench: BenchSpec, longest: int) -> tuple[tuple[Request, ...], tuple[str, ...]]:
    found = read_trace(Path(bench.trace))[: cell.requests]
    scaled = tuple(Request(one.arrival_s * bench.time_scale, _scaled(one.prompt, bench), _scaled(one.output, bench)) for one in found)
    kept = tuple(one for one in scaled if not longest or one.prompt + one.output <= longest)
    if not kept:
        raise InputError(f"bench.trace={bench.trace} has no request of at most serve.max_model_len={longest} tokens. Raise it.")
    notes = []
    if len(kept) < len(scaled):
        notes.append(f"{len(scaled) - len(kept)} of the trace's {len(scaled)} requests are over serve.max_model_len={longest}: left out.")
    first = kept[0].arrival_s
    return tuple(replace(one, arrival_s=one.arrival_s - first) for one in kept), tuple(notes)


def _scaled(tokens: int, bench: BenchSpec) -> int:
    return max(1, round(tokens * bench.length_scale))


def prompt_id(cell: Cell, bench: BenchSpec, part: str, repeat: int, index: int) -> int:
    """What tells the prompt of a request from every other of the benchmark; `part` is `measured` or `warmup`."""
    told = canonical_json([bench.seed, cell.name, part, repeat, index])
    return int(digest_text(told)[:_ID_DIGITS], 16)
