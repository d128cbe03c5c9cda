"""The built-in dataset `rtl`: generated Verilog tasks with reference modules and self-checking testbenches.

Three splits: `train`; `heldout`, the same kinds of module with parameter combinations that training never sees; and `hard`, kinds
that training never sees. Everything follows from the seed. This file builds and splits; what the kinds are stands in
`rtl_combinational.py`, `rtl_sequential.py` and `rtl_hard.py`. Nothing here runs a simulator.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossmesh.config.training import DataSpec, RtlSpec
from crossmesh.data import rtl_combinational, rtl_hard, rtl_sequential
from crossmesh.data.conversation import Conversation, message
from crossmesh.data.rtl_bench import testbench_text
from crossmesh.data.rtl_design import Kind, Params, Picker
from crossmesh.errors import InputError
from crossmesh.files import canonical_json, digest_text

KINDS: tuple[Kind, ...] = (*rtl_combinational.KINDS, *rtl_sequential.KINDS)
"""Kinds of `train` and `heldout`."""
HARD_KINDS: tuple[Kind, ...] = rtl_hard.KINDS

_HELDOUT_SHARE = 0.2
_ATTEMPTS = 50


@dataclass(frozen=True)
class RtlProblem:
    """One task: the prompt, a solution, and the testbench that tells whether any solution is right."""

    id: str
    """Kind and digest of prompt and solution."""
    kind: str
    params: tuple[tuple[str, int | str], ...]
    """The combination it was made from."""
    prompt: str
    solution: str
    """Reference module, plain Verilog."""
    testbench: str
    """Module `tb`; with `+nonce=<text>` it prints `PASS <text>` if and only if the module beside it is right."""
    split: str
    """`train`, `heldout` or `hard`."""

    @property
    def answer(self) -> str:
        """The solution as an assistant answers it: in a fenced block."""
        return f"```verilog\n{self.solution}\n```"


@dataclass(frozen=True)
class RtlDataset:
    """The three splits; the kinds take turns, so that any first part of a split holds all of them evenly."""

    train: tuple[RtlProblem, ...]
    heldout: tuple[RtlProblem, ...]
    hard: tuple[RtlProblem, ...]


def combinations(kind: Kind) -> list[Params]:
    """Return every parameter combination of `kind`."""
    return [dict(zip(kind.axes, values, strict=True)) for values in itertools.product(*kind.axes.values())]


def split_combinations(kind: Kind, seed: int) -> tuple[list[Params], list[Params]]:
    """Split the combinations of `kind` into those for training and a fifth held out, both in an order that follows from `seed`.

    A combination is held out only while each of its values still occurs in training: what is asked is a new combination, not a
    width or an operator never shown.
    """
    picker = Picker(f"{seed}/split/{kind.name}")
    train = sorted(combinations(kind), key=lambda params: picker.bits(repr(sorted(params.items())), 64))
    goal = max(3, round(len(train) * _HELDOUT_SHARE))
    heldout: list[Params] = []
    for params in list(train):
        rest = [other for other in train if other is not params]
        if len(heldout) < goal and all(any(other[axis] == value for other in rest) for axis, value in params.items()):
            heldout.append(params)
            train = rest
    return train, heldout


def _problem(kind: Kind, params: Params, split: str, picker: Picker) -> RtlProblem:
    design = kind.build(params, picker)
    prompt, solution = design.prompt_text(picker), design.module_text
    identity = f"{kind.name}-{digest_text(canonical_json([prompt, solution]))[:12]}"
    return RtlProblem(identity, kind.name, tuple(params.items()), prompt, solution, testbench_text(design, picker), split)


def _rows(pools: Sequence[tuple[Kind, Sequence[Params]]], split: str, count: int, seed: int, taken: set[str]) -> tuple[RtlProblem, ...]:
    """Draw `count` problems, kinds in turn, none whose prompt or module is in `taken`; adds what it drew to `taken`."""
    problems: list[RtlProblem] = []
    for index in range(count):
        turn, place = divmod(index, len(pools))
        kind, pool = pools[place]
        for attempt in range(_ATTEMPTS):
            picker = Picker(f"{seed}/{split}/{kind.name}/{turn}/{attempt}")
            problem = _problem(kind, pool[turn % len(pool)], split, picker)
            if problem.prompt not in taken and problem.solution not in taken:
                break
        else:
            raise InputError(
                f"data.rtl.{split}_rows={count} is more than the generator can make without repeating itself: it stopped at {index} rows. "
                f"Allowed: up to {index} with data.rtl.seed={seed}."
            )
        taken.update((problem.prompt, problem.solution))
        problems.append(problem)
    return tuple(problems)


def build_rtl(spec: RtlSpec) -> RtlDataset:
    """Generate the dataset. Raises `InputError` when more rows are asked for than there are distinct ones."""
    splits = [(kind, *split_combinations(kind, spec.seed)) for kind in KINDS]
    taken: set[str] = set()
    # Training comes last: no text of another split can occur in it.
    hard = _rows([(kind, split_combinations(kind, spec.seed)[0]) for kind in HARD_KINDS], "hard", spec.hard_rows, spec.seed, taken)
    heldout = _rows([(kind, held) for kind, _, held in splits], "heldout", spec.heldout_rows, spec.seed, taken)
    train = _rows([(kind, shown) for kind, shown, _ in splits], "train", spec.train_rows, spec.seed, taken)
    return RtlDataset(train, heldout, hard)


def read_rtl(data: DataSpec, cache: Path) -> Iterator[Conversation]:  # noqa: ARG001
    """Yield the training rows, as a dataset reader does (`readers.py`). Raises `InputError` for an address: `data.rtl` describes them."""
    if data.source != "rtl":
        raise InputError(f"data.source={data.source!r} has an address, and generated rows have none. Allowed: rtl, sized by data.rtl.")
    for number, problem in enumerate(build_rtl(data.rtl).train, 1):
        yield Conversation([message("user", problem.prompt), message("assistant", problem.answer)], place=f"rtl, row {number}")
