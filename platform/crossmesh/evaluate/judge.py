"""Decide whether an answer solves its problem: extract, screen, compile and simulate it in the sandbox.

An answer passes only when the testbench prints `PASS <nonce>` with a nonce drawn for this one simulation, and, where the testbench counts
its checks, as many as it makes of the reference. What a design prints decides nothing. Exit codes decide nothing by themselves. Scores are
`passk`'s.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from secrets import token_hex
from typing import TypeVar

from crossmesh.config.evaluation import EvalSpec
from crossmesh.data.verilog import extract, hollow
from crossmesh.errors import InputError
from crossmesh.evaluate.problems import DESIGN, NONCE, SUPPORT, TESTBENCH, Problem
from crossmesh.evaluate.sandbox import OUTPUT_LIMIT, TIMEOUT, Limits, Outcome, Sandbox
from crossmesh.evaluate.screening import refusal

Item = TypeVar("Item")
Result = TypeVar("Result")

SIMULATOR = ("iverilog", "vvp")
"""Programs that `open_sandbox` must make visible."""
PASSED = "passed"
REASONS = (
    PASSED,
    "no_answer",  # the endpoint refused to answer this prompt
    "no_module",  # no Verilog module in the answer
    "truncated",  # a module begun and not ended
    "wrong_module",  # modules, but none of the name that was asked for
    "empty_module",  # a header and no logic
    "refused",  # reaches for the judge: see `screening.refusal`
    "compile_error",
    "timeout",
    "output_limit",
    "crashed",  # the simulator ended with an error, out of memory for one
    "mismatch",  # the testbench reported wrong outputs
    "no_verdict",  # the simulation ended and the testbench had said nothing
    "bad_files",  # of a problem's own solution: its files cannot be judged with
)

_WALL = 10.0
"""Wall-clock seconds of a simulation for each CPU second and worker on a core: one that hangs computes; one that waits on a busy machine,
or on its neighbours, does not hang."""
_COMPILE_FAILED = 97
# One sandbox for both steps: its start is a large part of a short simulation. The testbench comes first, so that nothing in the design
# can change how it is read; `-s` makes its module the only top. Waveforms that a testbench asks for are not written.
_SCRIPT = (
    'iverilog -g2012 -s "${1:-tb}" -o simulation testbench.sv support.sv design.sv >log 2>&1 '
    f"|| {{ head -c 4000 log; exit {_COMPILE_FAILED}; }}; exec vvp -n simulation -none +nonce=$0"
)
_OUTPUT = 1 << 22
"""Bytes that testbench and design may print: some of a line at every clock edge."""
_CPU_SIGNALS = (-9, -24, 128 + 9, 128 + 24)
"""SIGKILL and SIGXCPU, as seen from outside the process or from its shell: how the CPU limit ends a process."""


@dataclass(frozen=True)
class Verdict:
    """What the judge says of one answer."""

    passed: bool
    reason: str
    """One of `REASONS`."""
    detail: str = ""
    """The first lines of what the compiler or the testbench said, or what was refused."""
    checks: int = 0
    """Checks that the testbench made, where it counts them and the answer passed."""


@dataclass(frozen=True)
class References:
    """What the judge says of a task's own solutions: what it can judge here, and what is left out."""

    usable: tuple[Problem, ...]
    """Their reference passes and a module with nothing in it does not."""
    excluded: tuple[tuple[str, str], ...]
    """Problem id and the reason that its reference failed for."""
    blind: tuple[str, ...]
    """Ids of problems whose testbench passes a module with nothing in it. Left out as well."""

    @property
    def left_out(self) -> tuple[tuple[str, str], ...]:
        """All problems that count nowhere, with the reason."""
        return tuple(sorted([*self.excluded, *((name, "passes_hollow") for name in self.blind)]))


def silent(*progress: object) -> None:
    """Report progress to nobody."""


def limits_of(eval_spec: EvalSpec) -> Limits:
    """Return the sandbox limits that a spec asks for."""
    wall = _WALL * eval_spec.timeout_s * max(1.0, eval_spec.workers / (os.cpu_count() or 1))
    return Limits(wall_s=wall, cpu_s=eval_spec.timeout_s, memory_mib=eval_spec.memory_mib, output_bytes=_OUTPUT)


@cache
def simulator_version() -> str:
    """Return the simulator's own version line, for the record.

    Raises:
        InputError: iverilog is not installed.
    """
    if any(shutil.which(program) is None for program in SIMULATOR):
        raise InputError(
            "Verilog answers are judged with Icarus Verilog, which is not installed. Install it: sudo apt-get install iverilog."
        )
    shown = subprocess.run(["vvp", "-V"], capture_output=True, text=True, check=False)
    return next((line.strip() for line in (shown.stdout + shown.stderr).splitlines() if line.strip()), "unknown")


def judge(problem: Problem, answer: str, sandbox: Sandbox, limits: Limits) -> Verdict:
    """Judge one answer."""
    found = extract(answer, problem.module, problem.header)
    if found.design and (why := refusal(found.design, problem.testbench, problem.support)):
        return Verdict(False, "refused", why)
    if found.problem:
        return Verdict(False, found.problem)
    return simulate(problem, found.design, sandbox, limits)


def simulate(problem: Problem, design: str, sandbox: Sandbox, limits: Limits) -> Verdict:
    """Judge a design that has been extracted and screened."""
    nonce = token_hex(16)
    bench = problem.testbench.replace(NONCE, nonce)
    files = {**problem.files, TESTBENCH: bench, SUPPORT: problem.support, DESIGN: design}
    return decide(sandbox.run(["sh", "-c", _SCRIPT, nonce, problem.top], files, limits), nonce, problem.checks)


def decide(outcome: Outcome, nonce: str, checks: int = 0) -> Verdict:
    """Read a simulation's outcome; `checks` is how many checks the testbench makes, or 0."""
    lines = [line.strip() for line in outcome.output.splitlines()]
    detail = "\n".join(line[:200] for line in lines[:8])
    if outcome.stopped == TIMEOUT or (outcome.returncode in _CPU_SIGNALS and not outcome.stopped):
        return Verdict(False, TIMEOUT, detail)
    if outcome.stopped == OUTPUT_LIMIT:
        return Verdict(False, OUTPUT_LIMIT, detail)
    if outcome.returncode == _COMPILE_FAILED:
        return Verdict(False, "compile_error", detail)
    if outcome.returncode:
        return Verdict(False, "crashed", detail or f"exit status {outcome.returncode}")
    # The design may have begun the line: only the testbench knows the nonce, so what stands before it says nothing.
    passes = [match for line in lines if (match := re.search(rf"PASS {re.escape(nonce)}(?: ([1-9]\d*))?$", line))]
    if any(line.endswith(f"LATE {nonce}") for line in lines):
        return Verdict(False, TIMEOUT, "the testbench ended by its own clock")
    if not passes:
        failed = any(re.search("fail|error|mismatch", line, re.IGNORECASE) for line in lines)
        return Verdict(False, "mismatch" if failed else "no_verdict", detail)
    made = int(passes[0][1] or len(passes))
    if checks and made != checks:
        return Verdict(False, "no_verdict", f"the simulation ended after {made} of {checks} checks")
    return Verdict(True, PASSED, checks=made)


def judge_all(
    answers: Sequence[tuple[Problem, str]],
    sandbox: Sandbox,
    limits: Limits,
    workers: int,
    on_progress: Callable[[int, int], None] = silent,
) -> list[Verdict]:
    """Judge answers, `workers` at a time, and return the verdicts in the order of the answers; equal ones are simulated once."""
    simulator_version()
    distinct = list(dict.fromkeys((problem.id, answer) for problem, answer in answers))
    by_id = {problem.id: problem for problem, _ in answers}
    found = _each(distinct, lambda pair: judge(by_id[pair[0]], pair[1], sandbox, limits), workers, on_progress)
    verdicts = dict(zip(distinct, found, strict=True))
    return [verdicts[(problem.id, answer)] for problem, answer in answers]


def judge_references(
    problems: Sequence[Problem], sandbox: Sandbox, limits: Limits, workers: int, on_progress: Callable[[int, int], None] = silent
) -> References:
    """Let each problem judge its own reference and a module with nothing in it, and tell what can be judged here from what cannot."""
    simulator_version()
    verdicts = _each(problems, lambda problem: _self_check(problem, sandbox, limits), workers, on_progress)
    checked = list(zip(problems, verdicts, strict=True))
    return References(
        usable=tuple(replace(problem, checks=right.checks) for problem, (right, wrong) in checked if right.passed and not wrong.passed),
        excluded=tuple(
            (problem.id, f"{right.reason}: {problem.defect}" if problem.defect else right.reason)
            for problem, (right, _) in checked
            if not right.passed
        ),
        blind=tuple(problem.id for problem, (right, wrong) in checked if right.passed and wrong.passed),
    )


def _self_check(problem: Problem, sandbox: Sandbox, limits: Limits) -> tuple[Verdict, Verdict]:
    """Return the verdicts on the reference and, when that passed, on a module with nothing in it."""
    if problem.defect:
        bad = Verdict(False, "bad_files", problem.defect)
        return bad, bad
    right = judge(problem, problem.reference, sandbox, limits)
    if not right.passed:
        return right, right
    return right, simulate(problem, hollow(problem.reference, problem.module), sandbox, limits)


def _each(items: Sequence[Item], work: Callable[[Item], Result], workers: int, on_progress: Callable[[int, int], None]) -> list[Result]:
    """Return `work` of each item, `workers` at a time, in the order of the items."""
    results: list[Result] = []
    with ThreadPoolExecutor(workers, thread_name_prefix="judge") as pool:
        try:
            for result in pool.map(work, items):
                results.append(result)
                on_progress(len(results), len(items))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return results
