"""Evaluations as `jobs/evaluate.py` leaves them in MLflow, of answers that are given: to look at, and to compare."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from crossmesh.config.evaluation import EvalSpec
from crossmesh.config.fingerprint import digest_of
from crossmesh.config.training import DataSpec
from crossmesh.evaluate.judge import Verdict
from crossmesh.evaluate.problems import Problem, task_digest
from crossmesh.evaluate.results import RECORD, RESULT, SURROUNDINGS, EvalResult, split_results
from crossmesh.evaluate.samples import Sample
from crossmesh.evaluate.tasks import load_task
from crossmesh.files import canonical_json, write_text
from crossmesh.track.tracked_run import TAG_EVALUATION
from crossmesh.track.tracker import Tracker

WRONG = (
    ("The module you ask for counts up.", Verdict(False, "no_module")),
    ("module top(input a, output y); assign y = a", Verdict(False, "truncated")),
    ("module top(input a, output y); assign y = b; endmodule", Verdict(False, "compile_error", "top.sv:1: error: b is not declared")),
)


def problems() -> tuple[Problem, ...]:
    """Those of the task `rtl`."""
    return load_task(EvalSpec(), DataSpec())


def add_evaluation(tracker: Tracker, name: str, tags: Mapping[str, str], right: int) -> str:
    """An evaluation of the task `rtl` in which of every three problems of a split the first `right` are solved; return its run."""
    asked = problems()
    samples, verdicts = _answers(asked, right)
    spec = EvalSpec(k=(1,))
    comparable = {"form": 2, "task": "rtl", "task_digest": task_digest(asked), "sampling": {"temperature": 0.0}, "judge": {"code": "a"}}
    with tempfile.TemporaryDirectory() as folder:
        judged = Path(folder) / "judged.jsonl"
        lines = [canonical_json({**asdict(s), **asdict(v)}) for s, v in zip(samples, verdicts, strict=True)]
        write_text(judged, "".join(f"{line}\n" for line in lines))
        result = EvalResult(
            model=name,
            splits=split_results(asked, samples, verdicts, spec),
            comparable_on=comparable,
            excluded=(),
            errors={},
            prompt_tokens=100,
            completion_tokens=100,
            cut_at_max_tokens=0,
            seconds=1.0,
            samples_path=str(judged),
            warnings=(),
        )
        record = {**comparable, "engine": {"dtype": "float32"}}
        run = tracker.start(f"evaluate {name}", "evaluate", tags=tags, params={"eval": spec})
        tracker.artifact_json(run, RECORD, record)
        tracker.artifact_json(run, SURROUNDINGS, {"files": {}, "settings": {}})
        tracker.tags(run, {TAG_EVALUATION: digest_of(record)})
        tracker.artifact_json(run, RESULT, result.to_json())
        tracker.artifact_file(run, judged, "samples")
        tracker.finish(run)
    return run


def _answers(asked: Sequence[Problem], right: int) -> tuple[list[Sample], list[Verdict]]:
    samples, verdicts = [], []
    for number, problem in enumerate(asked):
        solved = number % 3 < right
        text, verdict = (f"```verilog\n{problem.reference}\n```", Verdict(True, "passed")) if solved else WRONG[number % 3]
        samples.append(Sample(problem.id, 0, 0, text, "stop", 50, 40))
        verdicts.append(verdict)
    return samples, verdicts
