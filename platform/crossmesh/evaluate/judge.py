"""Decide whether an answer solves its problem: extract, screen, compile and simulate it in the sandbox.

An answer passes only when the testbench prints `PASS <nonce>` with a nonce drawn for this one simulation. Exit codes decide
nothing by themselves. Scores are `passk`'s.
"""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from secrets import token_hex

from crossmesh.errors import InputError
from crossmesh.evaluate.problems import Problem
from crossmesh.evaluate.sandbox import OUTPUT_LIMIT, TIMEOUT, Limits, Outcome, Sandbox
from crossmesh.evaluate.verilog import extract, refusal
from crossmesh.spec.evaluation import EvalSpec

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
    "refused",  # reaches for the judge: see `verilog.refusal`
    "compile_error",
    "timeout",
    "output_limit",
    "crashed",  # the simulator ended with an error, out of memory for one
    "mismatch",  # the testbench reported wrong outputs
    "no_verdict",  # the simulation ended and the testbench had said nothing
)

_COMPILE_FAILED = 97
# One sandbox for both steps: its start is the larger part of a short simulation. The testbench comes first, so that nothing in the
# design can change how it is read; `-s tb` makes it the only top.
_SCRIPT = (
    "iverilog -g2012 -s tb -o simulation testbench.sv design.sv >log 2>&1 "
    f"|| {{ head -c 4000 log; exit {_COMPILE_FAILED}; }}; exec vvp -n simulation +nonce=$0"
)
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


@dataclass(frozen=True)
class References:
    """What the judge says of a task's own references: problems whose reference fails cannot be judged here and are left out."""

    usable: tuple[Problem, ...]
    excluded: tuple[tuple[str, str], ...]
    """Problem id and the reason its reference failed for."""


def silent(*progress: object) -> None:
    """Report progress to nobody."""


def limits_of(eval_spec: EvalSpec) -> Limits:
    """Return the sandbox limits that a spec asks for."""
    return Limits(wall_s=eval_spec.timeout_s, memory_mib=eval_spec.memory_mib)


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
    found = extract(answer, problem.module)
    if found.design and (why := refusal(found.design, problem.testbench)):
        return Verdict(False, "refused", why)
    if found.problem:
        return Verdict(False, found.problem)
    nonce = token_hex(16)
    files = {"testbench.sv": problem.testbench, "design.sv": found.design}
    return decide(sandbox.run(["sh", "-c", _SCRIPT, nonce], files, limits), nonce)


def decide(outcome: Outcome, nonce: str) -> Verdict:
    """Read a simulation's outcome."""
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
    if f"PASS {nonce}" in lines:
        return Verdict(True, PASSED)
    return Verdict(False, "mismatch" if any(line.startswith("FAIL") for line in lines) else "no_verdict", detail)


def judge_all(
    answers: Sequence[tuple[Problem, str]],
    sandbox: Sandbox,
    limits: Limits,
    workers: int,
    on_progress: Callable[[int, int], None] = silent,
) -> list[Verdict]:
    """Judge answers, `workers` at a time, and return the verdicts in the order of the answers."""
    simulator_version()
    verdicts: list[Verdict] = []
    with ThreadPoolExecutor(workers, thread_name_prefix="judge") as pool:
        try:
            for verdict in pool.map(lambda pair: judge(pair[0], pair[1], sandbox, limits), answers):
                verdicts.append(verdict)
                on_progress(len(verdicts), len(answers))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return verdicts


def judge_references(problems: Sequence[Problem], sandbox: Sandbox, limits: Limits, workers: int) -> References:
    """Judge each problem's own reference and separate what this simulator can judge from what it cannot."""
    verdicts = judge_all([(problem, problem.reference) for problem in problems], sandbox, limits, workers)
    usable = tuple(problem for problem, verdict in zip(problems, verdicts, strict=True) if verdict.passed)
    excluded = tuple((problem.id, verdict.reason) for problem, verdict in zip(problems, verdicts, strict=True) if not verdict.passed)
    return References(usable, excluded)
