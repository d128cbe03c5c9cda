"""Whether a candidate is worse than its baseline by more than is allowed, for CI. Pure: limits are judged with the interval of a change."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crossmesh.errors import InputError
from crossmesh.evaluate.estimates import Margin
from crossmesh.metrics import HIGHER
from crossmesh.report.gate.comparable import YES, Comparison
from crossmesh.report.pages.write import Report
from crossmesh.report.tables.quantity import LOSS, Quantity
from crossmesh.report.tables.sheets import Computed
from crossmesh.report.winners import absolute, margin_of, smallest, timed_once

_LIMIT = re.compile(r"^(-?\d+(?:\.\d+)?)(%?)$")
REGRESSION, WITHIN, OPEN = "regression", "within the limit", "beyond the limit, but within its interval"
ONE_RUN = "beyond the limit, but not decided: one run each"
EQUAL = "within the smallest difference that matters"


@dataclass(frozen=True)
class RegressionLimit:
    """The most that a quantity may change for the worse."""

    key: str
    text: str
    value: float
    """Relative, or a difference of shares where the quantity is one."""


@dataclass(frozen=True)
class Judged:
    """A limit held against what was measured."""

    limit: RegressionLimit
    baseline: str
    candidate: str
    """Both with their unit."""
    change: Margin
    verdict: str
    """`REGRESSION`, `WITHIN` or `OPEN`."""

    @property
    def words(self) -> str:
        """One line."""
        return f"{self.limit.key}: {self.baseline} to {self.candidate}, {self.change.words}; fail_if {self.limit.text}: {self.verdict}"


def parse_limit(key: str, text: str) -> RegressionLimit:
    """Read `-3%`, `2%` or `0`. Raises `InputError` for anything else."""
    found = _LIMIT.match(text.strip())
    if found is None:
        raise InputError(
            f"fail_if.{key}={text!r} is not a limit. Allowed: a change such as -3% (a fall of more than 3% fails), 2% (a rise of more than "
            "2% fails), or 0 (any change for the worse fails)."
        )
    return RegressionLimit(key, text.strip(), float(found[1]) / 100)


def judge_regressions(report: Report, runs: Sequence[str], limits: Mapping[str, str]) -> tuple[Judged, ...]:
    """Hold `limits`, by key of a quantity, against the change from the first of two `runs` of `report`, the baseline, to the second.

    A limit is broken where the change is beyond it and so is its whole interval; without an interval the value alone decides.

    Raises `InputError` for a limit that cannot be read or has the wrong sign, for a quantity that one of the two lacks, and for runs
    that may not be compared in it.
    """
    by_run = {one.run_id: one for one in report.results.variants}
    baseline, candidate = (by_run[run] for run in runs)
    judged = []
    for key, text in limits.items():
        limit = parse_limit(key, text)
        quantity = _quantity(report.found, key)
        _check(quantity, limit, report.comparison, baseline.name, candidate.name)
        change, names = margin_of(quantity, candidate, baseline), (candidate.name, baseline.name)
        before, after = (f"{quantity.cells[one.name].text} {quantity.unit}" for one in (baseline, candidate))
        judged.append(Judged(limit, before, after, change, _verdict(change, limit, quantity, _small(change, quantity, report, names))))
    return tuple(judged)


def _quantity(found: Computed, key: str) -> Quantity:
    """`pass_at_1` is that of the primary split: it comes first."""
    for one in found.quantities:
        if key in (one.key, one.key.partition("/")[0]):
            return one
    raise InputError(f"fail_if.{key}: neither run has it. They have: {', '.join(one.key for one in found.quantities if one.estimates)}.")


def _check(quantity: Quantity, limit: RegressionLimit, comparison: Comparison, *names: str) -> None:
    lacking = [f"{name} ({quantity.cells[name].text})" for name in names if name not in quantity.estimates]
    if lacking:
        raise InputError(
            f"fail_if.{limit.key}: not measured on {' and '.join(lacking)}. Evaluate or benchmark both, or leave the limit out."
        )
    wrong = limit.value > 0 if quantity.better == HIGHER else limit.value < 0
    if wrong:
        allowed = "0 or negative: more is better" if quantity.better == HIGHER else "0 or positive: less is better"
        raise InputError(f"fail_if.{limit.key}={limit.text}: this limit never fails for the worse. Allowed: {allowed}.")
    gate = comparison.gates[quantity.aspect]
    if gate.state != YES:
        keys = ", ".join(f"{one.scope}.{one.key}" for one in gate.blocking[:5])
        raise InputError(
            f"fail_if.{limit.key}: the runs are not comparable in {quantity.aspect}: {keys} differ. Compare runs of one science."
        )


def _small(change: Margin, quantity: Quantity, report: Report, names: tuple[str, str]) -> bool:
    """Whether a change is below the smallest that matters."""
    size, _ = smallest(quantity, report.results.matters)
    return abs(absolute(quantity, *names).value if quantity.key == LOSS else change.value) < size


def _verdict(change: Margin, limit: RegressionLimit, quantity: Quantity, small: bool) -> str:
    sign = 1 if quantity.better == HIGHER else -1
    if sign * change.value >= sign * limit.value:
        return WITHIN
    if small:
        return EQUAL
    if timed_once(quantity) and change.low is None:
        return ONE_RUN
    best = change.high if quantity.better == HIGHER else change.low
    return OPEN if best is not None and sign * best >= sign * limit.value else REGRESSION


def require_decided(judged: Sequence[Judged], more: str) -> None:
    """Raise `InputError` where one run each leaves a limit open; `more` is the command that adds repeats."""
    undecided = next((one for one in judged if one.verdict == ONE_RUN), None)
    if undecided is not None:
        raise InputError(
            f"fail_if.{undecided.limit.key} cannot be judged: {undecided.change.words} is beyond the limit, and one run each says nothing "
            f"of the machine. Add repeats and judge fail_if.tokens_per_s: {more}"
        )
