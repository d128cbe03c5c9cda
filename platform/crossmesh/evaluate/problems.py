"""What a problem is: the question, the reference answer and the testbench that decides.

Where problems come from is `tasks`; whether an answer is right is `judge`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from crossmesh.errors import InputError
from crossmesh.evaluate.verilog import tokenize, without_comments
from crossmesh.files import canonical_json, digest_text


@dataclass(frozen=True)
class Problem:
    """One problem of a task."""

    id: str
    messages: tuple[Mapping[str, str], ...]
    """Chat messages `{role, content}` that a model is asked with."""
    reference: str
    """Verilog that solves it."""
    testbench: str
    """Verilog with a top module `tb` that prints `PASS <nonce>`, the value of `+nonce=`, if and only if every check held."""
    split: str
    """Part of the task that it is reported under."""

    @property
    def module(self) -> str:
        """Name of the module that the testbench instantiates: the reference's module that the testbench mentions.

        Raises:
            InputError: the testbench mentions no module of the reference.
        """
        tokens = tokenize(without_comments(self.reference))
        mentioned = {token.text for token in tokenize(without_comments(self.testbench)) if token.kind == "name"}
        for token, name in pairwise(tokens):
            if token.text == "module" and name.text in mentioned:
                return name.text
        raise InputError(f"Problem {self.id!r}: its testbench instantiates no module of its reference. Correct the task's files.")


def task_digest(problems: Sequence[Problem]) -> str:
    """Return the digest of what is asked and how it is decided: two results with the same one answered the same questions."""
    return digest_text(canonical_json([[p.id, p.split, [dict(m) for m in p.messages], p.testbench] for p in problems]))
