"""A cell of a benchmark, and what its prompts say. Knows no workload.

A request is when it arrives and how long prompt and answer are (`plan.batching.LoadRequest`, as the planner simulates it). What its prompt
says is random, and told apart by ids: no two prompts of a benchmark are alike, but for those that a workload says begin alike.
"""

from dataclasses import dataclass

from crossmesh.config.bench import RATE, BenchSpec
from crossmesh.files import canonical_json, digest_text

_ID_DIGITS = 12
WHOLE_PROMPT = 1 << 30
"""Tokens of a block that is a whole prompt: more than any has."""


@dataclass(frozen=True)
class Cell:
    """One point of a benchmark."""

    load: str
    value: float
    """What the workload varies: requests a second (`rate`), requests in flight (`concurrency`); 0 where it varies nothing."""
    prompt: int
    """Tokens of each prompt; 0: they differ, as the workload says."""
    output: int
    requests: int

    @property
    def name(self) -> str:
        """What it is called in tables, files and metrics."""
        value = f"{'qps' if self.load == RATE else self.load}{self.value:g}" if self.value else self.load
        return f"{value}_{self.prompt}in_{self.output}out" if self.prompt else value


@dataclass(frozen=True)
class Prompts:
    """What the prompts of a load say: of each, ids of its blocks in order. Equal ids are equal tokens."""

    ids: tuple[tuple[int, ...], ...]
    block: int = WHOLE_PROMPT
    """Tokens of a block; the last one of a prompt may have fewer."""


def prompt_id(cell: Cell, bench: BenchSpec, part: str, repeat: int, told: int | str) -> int:
    """What tells a prompt, or a block of one, from every other of the benchmark; `told` is the index of the request, or its block."""
    return int(digest_text(canonical_json([bench.seed, cell.name, part, repeat, told]))[:_ID_DIGITS], 16)
