"""Nothing unlike passes as alike, and nothing alike is refused: changes tried on tiny models, and in which aspect each of them shows.

Trainings are real trials on both backends in a store of their own, compared as `crossmesh compare` compares; verdicts are the simulator's.
Which key of the spec decides what, one by one, is a table of the tests (`tests/unit/report/gate/test_unlike.py`).
"""

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from crossmesh.cluster.session import ray_session
from crossmesh.config.evaluation import EvalSpec
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import DataSpec, RtlSpec
from crossmesh.console import Console
from crossmesh.evaluate.harness import JudgedTask, open_task
from crossmesh.evaluate.judge import limits_of
from crossmesh.evaluate.judging import judge_record
from crossmesh.report.gate.comparable import compare_variants
from crossmesh.report.variants import RunRecord, Variant
from crossmesh.track.trackers import open_tracker
from crossmesh.verify.result import CheckResult, Limit
from crossmesh.verify.unlike.case import Case, scopes
from crossmesh.verify.unlike.store import edited_cases, port_case
from crossmesh.verify.unlike.trained import LOSS_BOUND, Trainings, tiny_spec, trained_cases

_SHORT_S = 0.2
_PROBLEMS = 4
_LOOP = "reg [31:0] burn; integer turn; initial begin burn = 0; for (turn = 0; turn < {turns}; turn = turn + 1) burn = burn + turn; end"
_TURNS = 4_000_000
"""Turns of a loop that a simulation first makes: more than `_SHORT_S` of CPU time, far less than the default."""


def verify_unlike(spec: ExperimentSpec, folder: Path, console: Console) -> CheckResult:
    """Run the table and return it."""
    own = tiny_spec(spec, folder)
    tracker = open_tracker(own.tracking, own.storage)
    with ray_session(own.storage):
        trained, runs = trained_cases(Trainings(own, tracker, console), folder)
    cases = [*trained, *edited_cases(tracker, own.storage.path, runs, console), _timeout_case(console), _port_case(own, console)]
    return result_of(cases)


def result_of(cases: list[Case]) -> CheckResult:
    """The verdict on the table."""
    tried = [one for one in cases if not one.skipped]
    same = [one.figures["loss_difference"] for one in tried if "loss_difference" in one.figures and "science" not in one.must]
    limits = [Limit("rows_not_passed", float(sum(not one.passed for one in tried)), 0.0)]
    if same:
        limits.append(Limit("loss_difference_within_one_science", max(same), LOSS_BOUND))
    figures: dict[str, Any] = {one.changed: one.row for one in cases}
    return CheckResult("unlike", tuple(limits), {"rows": len(tried), "skipped": len(cases) - len(tried), **figures})


def _timeout_case(console: Console) -> Case:
    """The same answers under `eval.timeout_s` of 10 s and of less than they take."""
    long, data = EvalSpec(), DataSpec(rtl=RtlSpec(train_rows=8, heldout_rows=_PROBLEMS, hard_rows=0))
    short = replace(long, timeout_s=_SHORT_S)
    with console.stage(f"judge under eval.timeout_s={long.timeout_s:g} and {_SHORT_S:g}") as stage:
        task = open_task(long, data, stage.progress)
        answers = [(problem, _slowed(problem.reference)) for problem in task.references.usable]
        verdicts = [_judged(task, one, answers) for one in (long, short)]
    changed = sum(first.passed != second.passed for first, second in zip(*verdicts, strict=True))
    records = {"long": judge_record(long), "short": judge_record(short)}
    evaluated = [Variant(name, None, RunRecord(name, evaluation={"judge": record}), run_id=name) for name, record in records.items()]
    shown = {one.scope for one in compare_variants(evaluated).differences}
    return Case(
        f"eval.timeout_s {long.timeout_s:g} -> {_SHORT_S:g}",
        "evaluation",
        scopes(shown),
        {"verdicts": len(answers), "verdicts_changed": changed},
        "" if changed else "no verdict changed: the limit was never reached",
    )


def _judged(task: JudgedTask, spec: EvalSpec, answers: list[Any]) -> list[Any]:
    return replace(task, limits=limits_of(spec)).judge(answers)


def _slowed(design: str) -> str:
    """The design, which first computes for a while."""
    head, end, rest = design.rpartition("endmodule")
    return f"{head}{_LOOP.format(turns=_TURNS)}\n{end}{rest}"


def _port_case(spec: ExperimentSpec, console: Console) -> Case:
    with console.stage("two servers on one port"), socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # As Ray Serve's proxy does.
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        return port_case(spec.storage.path, listener.getsockname()[1])
