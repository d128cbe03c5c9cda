"""The interface of a workload: which cells a benchmark has, and which requests arrive when in each."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, ClassVar

from crossmesh.bench.cells import Cell, Prompts, prompt_id
from crossmesh.config.bench import WORKLOADS, BenchSpec
from crossmesh.errors import InputError
from crossmesh.plan.serving.batching import LoadRequest


class Workload(ABC):
    """How a server is asked: pure functions of the spec, the same for the same seed.

    The fields of a dataclass are the options that `bench.options` gives.
    """

    timed: ClassVar[bool] = False
    """Whether requests arrive at times of their own, so that a client or a server may fall behind them."""
    axis: ClassVar[str] = ""
    """What `Cell.value` is, on the axis of a chart; empty where it is nothing."""

    @abstractmethod
    def cells(self, bench: BenchSpec) -> Sequence[Cell]:
        """Every cell that `bench` asks for, each with a name of its own."""

    @abstractmethod
    def requests(self, cell: Cell, bench: BenchSpec, repeat: int, longest: int) -> tuple[tuple[LoadRequest, ...], tuple[str, ...]]:
        """Return the requests of one measurement of `cell` in the order of arrival, and notes on what was left out.

        Raises `InputError` where they do not fit a server whose longest request has `longest` tokens (0: not known).
        """

    def prompts(self, cell: Cell, bench: BenchSpec, part: str, repeat: int, requests: Sequence[LoadRequest]) -> Prompts:
        """Return what the prompts of `requests` say, `part` being `measured` or `warmup`; unless overridden no two begin alike."""
        return Prompts(tuple((prompt_id(cell, bench, part, repeat, index),) for index in range(len(requests))))

    def most_in_flight(self, cell: Cell) -> int:
        """Return how many requests the client lets be in flight at once; 0: any number."""
        del cell
        return 0

    def record(self) -> Mapping[str, Any]:
        """Return what, beside the keys of `bench`, makes two measurements of one cell alike, plain JSON: the options, unless overridden."""
        return asdict(self) if is_dataclass(self) else {}


def make_workload(bench: BenchSpec) -> Workload:
    """Return the workload that `bench` names. Raises `InputError` for options that it does not have."""
    workload: Workload = WORKLOADS.make("bench.load", bench.load, "bench.options", bench.options)
    return workload


def cells_of(bench: BenchSpec) -> Sequence[Cell]:
    """Every cell that `bench` asks for; of a search the first for each prompt and answer."""
    return make_workload(bench).cells(bench)


def check_length(cell: Cell, longest: int) -> None:
    """Raise `InputError` where a request of `cell` is longer than the server's `longest` tokens (0: not known)."""
    if longest and cell.prompt + cell.output > longest:
        raise InputError(
            f"bench.prompt_tokens={cell.prompt} with bench.output_tokens={cell.output} are {cell.prompt + cell.output} tokens, over "
            f"serve.max_model_len={longest}. Raise it, or shorten them."
        )
