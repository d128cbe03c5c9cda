"""The cells of a benchmark and the requests of each: pure functions of the spec, the same for the same seed.

A request is when it arrives and how long prompt and answer are (`plan.batching.Request`, as the planner simulates it). What its prompt says
is random, and told apart by ids: no two prompts of a benchmark are alike, but for those of one measurement that a trace says begin alike.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from crossmesh.config.bench import BURST, CONCURRENCY, RATE, TRACE, BenchSpec
from crossmesh.errors import InputError
from crossmesh.files import canonical_json, digest_text
from crossmesh.plan.serving.batching import LoadRequest
from crossmesh.plan.serving.traces import Trace, read_trace, shared_tokens

_ID_DIGITS = 12
WHOLE_PROMPT = 1 << 30
"""Tokens of a block that is a whole prompt: more than any has."""


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


def requests_of(cell: Cell, bench: BenchSpec, repeat: int, longest: int) -> tuple[tuple[LoadRequest, ...], tuple[str, ...]]:
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
    return tuple(LoadRequest(time, cell.prompt, cell.output) for time in times), ()


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


def _of_trace(cell: Cell, bench: BenchSpec, longest: int) -> tuple[tuple[LoadRequest, ...], tuple[str, ...]]:
    trace = read_trace(Path(bench.trace))
    scaled = tuple(_scaled(one, trace, bench) for one in trace.requests[: cell.requests])
    kept = tuple(one for one in scaled if not longest or one.prompt + one.output <= longest)
    if not kept:
        raise InputError(f"bench.trace={bench.trace} has no request of at most serve.max_model_len={longest} tokens. Raise it.")
    notes = list(trace.notes)
    if len(kept) < len(scaled):
        notes.append(f"{len(scaled) - len(kept)} of the trace's {len(scaled)} requests are over serve.max_model_len={longest}: left out.")
    first = kept[0].arrival_s
    block = _block(trace, bench)
    shared = shared_tokens(kept, block) if block else [0] * len(kept)
    if any(shared):
        tokens = sum(one.prompt for one in kept)
        notes.append(f"{sum(shared):,} of {tokens:,} prompt tokens are the beginning of an earlier prompt, as the trace's hashes say.")
    return tuple(replace(one, arrival_s=one.arrival_s - first, shared=same) for one, same in zip(kept, shared, strict=True)), tuple(notes)


def _scaled(one: LoadRequest, trace: Trace, bench: BenchSpec) -> LoadRequest:
    """A request of a trace, faster and shorter; a hashed prompt is shortened block by block, so that equal blocks stay equal."""
    block = _block(trace, bench)
    prompt = (
        one.prompt // trace.block * block + round(one.prompt % trace.block * block / trace.block) if block else _tokens(one.prompt, bench)
    )
    return LoadRequest(one.arrival_s * bench.time_scale, max(1, prompt), _tokens(one.output, bench), hashes=one.hashes)


def _tokens(tokens: int, bench: BenchSpec) -> int:
    return max(1, round(tokens * bench.length_scale))


def _block(trace: Trace, bench: BenchSpec) -> int:
    """Tokens of a hashed block as it is sent; 0 where the trace has none."""
    return _tokens(trace.block, bench) if trace.block else 0


@dataclass(frozen=True)
class Prompts:
    """What the prompts of a load say: of each, ids of its blocks in order. Equal ids are equal tokens."""

    ids: tuple[tuple[int, ...], ...]
    block: int = WHOLE_PROMPT
    """Tokens of a block; the last one of a prompt may have fewer."""


def prompts_of(cell: Cell, bench: BenchSpec, part: str, repeat: int, requests: Sequence[LoadRequest]) -> Prompts:
    """The prompts of `requests`; `part` is `measured` or `warmup`. What a trace hashes alike is alike within them, and nowhere else."""
    block = _block(read_trace(Path(bench.trace)), bench) if any(one.hashes for one in requests) else 0
    if not block:
        return Prompts(tuple((prompt_id(cell, bench, part, repeat, index),) for index in range(len(requests))))
    found = []
    for index, one in enumerate(requests):
        blocks = -(-one.prompt // block)
        own = [f"{index}.{number}" for number in range(len(one.hashes), blocks)]  # Blocks that the trace says nothing of.
        found.append(
            tuple(prompt_id(cell, bench, part, repeat, told) for told in [*(f"#{hashed}" for hashed in one.hashes), *own][:blocks])
        )
    return Prompts(tuple(found), block)


def prompt_id(cell: Cell, bench: BenchSpec, part: str, repeat: int, told: int | str) -> int:
    """What tells a prompt, or a block of one, from every other of the benchmark; `told` is the index of the request, or its block."""
    return int(digest_text(canonical_json([bench.seed, cell.name, part, repeat, told]))[:_ID_DIGITS], 16)
