"""What a problem is: the question, the reference answer and the testbench that decides.

Where problems come from is `tasks`; whether an answer is right is `judge`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from crossmesh.data.verilog import tokenize, without_comments
from crossmesh.errors import InputError
from crossmesh.files import canonical_json, digest_text

NONCE = "crossmesh-nonce-of-one-simulation"
"""What stands for the nonce in a testbench that says its word with text of its own."""
TESTBENCH, SUPPORT, DESIGN = "testbench.sv", "support.sv", "design.sv"
"""Files that a simulation is made of, beside the problem's own."""


@dataclass(frozen=True)
class Problem:
    """One problem of a task."""

    id: str
    messages: tuple[Mapping[str, str], ...]
    """Chat messages `{role, content}` that a model is asked with."""
    reference: str
    """Verilog that solves it."""
    testbench: str
    """Verilog with the top module `top` that prints `PASS <nonce>`, the value of `+nonce=` or what stands for `NONCE`, if and only if every
    check held; one that counts its checks prints their number after the nonce, and one that ended by its own clock also `LATE <nonce>`."""
    split: str
    """Part of the task that it is reported under."""
    module: str
    """Name of the module under test."""
    support: str = ""
    """Verilog that the testbench needs beside the design, such as the model that it compares with."""
    header: str = ""
    """Where a model is asked to complete a module: how the module begins."""
    checks: int = 0
    """Checks that the testbench makes of the reference, and so of any design when it runs to its end; 0: it does not count them."""
    top: str = "tb"
    files: Mapping[str, str] = field(default_factory=dict)
    """Text files that the testbench reads, by name."""
    defect: str = ""
    """Why its files cannot be judged with; such a problem is left out by name."""


def module_under_test(reference: str, testbench: str, name: str) -> str:
    """Return the module of `reference` that `testbench` mentions.

    Raises:
        InputError: it mentions none; `name` says whose files those are.
    """
    tokens = tokenize(without_comments(reference))
    mentioned = {token.text for token in tokenize(without_comments(testbench)) if token.kind == "name"}
    for token, following in pairwise(tokens):
        if token.text == "module" and following.text in mentioned:
            return following.text
    raise InputError(f"Problem {name!r}: its testbench instantiates no module of its reference. Correct the task's files.")


def task_digest(problems: Sequence[Problem]) -> str:
    """Return the digest of what is asked and how it is decided: two results with the same one answered the same questions."""
    return digest_text(
        canonical_json(
            [[p.id, p.split, [dict(m) for m in p.messages], p.testbench, p.support, p.header, p.top, dict(p.files)] for p in problems]
        )
    )
