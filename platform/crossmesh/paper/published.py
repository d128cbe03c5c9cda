"""What published pass@k allow to say when the answers themselves were not published: arithmetic on counts.

From pass@1, pass@n, the number of problems and n answers each follow how many answers were right and how many problems had a right one. How
the right answers fall on the problems does not follow; the intervals here are those of the kindest and the least kind way.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

from crossmesh.evaluate.paired import LEVEL, mcnemar_p

_Z = NormalDist().inv_cdf((1 + LEVEL) / 2)


@dataclass(frozen=True)
class Published:
    """A result as a paper prints it."""

    name: str
    pass_at_1: float
    pass_at_n: float
    problems: int
    answers: int
    """To each problem, two or more: n."""

    @property
    def right(self) -> int:
        """Right answers in all."""
        return round(self.pass_at_1 * self.problems * self.answers)

    @property
    def solved(self) -> int:
        """Problems with a right answer."""
        return round(self.pass_at_n * self.problems)

    @property
    def errors(self) -> tuple[float, float]:
        """The smallest and the largest standard error of pass@1 over problems that these counts allow."""
        if not self.solved <= self.right <= self.solved * self.answers:
            raise ValueError(f"{self.name}: {self.right} right answers do not fit on {self.solved} problems with {self.answers} each.")
        low, more = divmod(self.right, self.solved)
        evenly = [low + 1] * more + [low] * (self.solved - more)
        # Unevenly: one answer right on every solved problem, the rest on as few of them as can hold them.
        full, rest = divmod(self.right - self.solved, self.answers - 1)
        unevenly = [self.answers] * full + [1 + rest] * (full < self.solved) + [1] * (self.solved - full - 1)
        return self._error(evenly), self._error(unevenly)

    def interval(self, error: float) -> tuple[float, float]:
        """Return the interval of pass@1 with such an error."""
        return self.pass_at_1 - _Z * error, self.pass_at_1 + _Z * error

    def _error(self, right: list[int]) -> float:
        """The standard error of pass@1 when the solved problems have so many answers right each."""
        mean = self.right / self.problems / self.answers
        return math.sqrt((sum(count**2 for count in right) / self.answers**2 / self.problems - mean**2) / self.problems)


@dataclass(frozen=True)
class Allowed:
    """What two published results allow to say of their difference."""

    difference: float
    """In pass@1."""
    independent: tuple[tuple[float, float], tuple[float, float]]
    """Its interval with the smallest and with the largest errors, were the models' answers unrelated."""
    paired_errors: tuple[float, float]
    """Bounds of its standard error when both answered the same problems: all pairings that the counts allow lie between."""
    solved_p: float
    """The smallest p-value of McNemar's test on problems solved that the counts allow: no pairing of the problems gives less."""


def compare_published(one: Published, other: Published) -> Allowed:
    """Say what the published counts of `one` and `other` allow of `one` minus `other`.

    Raises:
        ValueError: they are not of the same number of problems and answers, or the counts do not fit together.
    """
    if (one.problems, one.answers) != (other.problems, other.answers):
        raise ValueError(
            f"{one.name} and {other.name} are of {one.problems} x {one.answers} and {other.problems} x {other.answers} answers."
        )
    difference = one.pass_at_1 - other.pass_at_1
    joint = [math.hypot(mine, theirs) for mine, theirs in zip(one.errors, other.errors, strict=True)]
    narrow, wide = ((difference - _Z * error, difference + _Z * error) for error in joint)
    # At least one answer more on as many problems as there are more right answers, and none fewer anywhere.
    more = abs(one.right - other.right)
    mean = more / one.answers / one.problems
    least = max(0.0, more / one.answers**2 / one.problems - mean**2)
    return Allowed(
        difference=difference,
        independent=(narrow, wide),
        paired_errors=(math.sqrt(least / one.problems), one.errors[1] + other.errors[1]),
        solved_p=mcnemar_p(abs(one.solved - other.solved), 0),
    )


PAPER = (Published("TPU v5p-8", 0.6410, 0.7949, 156, 5), Published("2xH100", 0.6974, 0.8141, 156, 5))
"""verilog-eval of arXiv 2605.25645: 156 problems, 5 answers each."""
