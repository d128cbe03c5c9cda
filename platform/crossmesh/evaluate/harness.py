"""Evaluate one model behind an endpoint on one task: the task's own solutions first, then samples, verdicts and pass@k.

The result says nothing about other models; `paired` compares two, and `EvalResult.comparable_on` says what must be equal for it.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crossmesh.config.evaluation import EvalSpec
from crossmesh.config.training import DataSpec
from crossmesh.errors import InputError
from crossmesh.evaluate.answers import left_out
from crossmesh.evaluate.generate import generate
from crossmesh.evaluate.judge import SIMULATOR, References, Verdict, judge_all, judge_references, limits_of, silent
from crossmesh.evaluate.judging import judge_record
from crossmesh.evaluate.problems import Problem, task_digest
from crossmesh.evaluate.prompts import prompts_record
from crossmesh.evaluate.results import RECORD_FORM, RESULT, EvalResult, cut_of, split_results
from crossmesh.evaluate.samples import Sample
from crossmesh.evaluate.sandbox import Limits, Sandbox, open_sandbox
from crossmesh.evaluate.tasks import load_task
from crossmesh.files import canonical_json, write_json, write_text
from crossmesh.server_identity import Origin
from crossmesh.signals import run_async

Progress = Callable[[str, int, int], None]
"""Called with the stage (`references`, `generate`, `judge`), how much is done and how much there is."""


def sampling_record(eval_spec: EvalSpec) -> dict[str, Any]:
    """Return what shapes the answers on any engine."""
    names = ("temperature", "top_p", "max_tokens", "samples", "seed")
    return {name: getattr(eval_spec, name) for name in names}


@dataclass(frozen=True)
class JudgedTask:
    """A task ready to judge answers on this machine, itself judged first."""

    references: References
    task_digest: str
    """Of all problems of the task, those that cannot be judged here included."""
    judge_record: Mapping[str, Any]
    """What judges (`judging.judge_record`)."""
    sandbox: Sandbox
    limits: Limits
    workers: int

    def judge(self, answers: Sequence[tuple[Problem, str]], on_progress: Progress = silent) -> list[Verdict]:
        """Judge answers, in their order."""
        return judge_all(answers, self.sandbox, self.limits, self.workers, lambda done, total: on_progress("judge", done, total))


def open_task(eval_spec: EvalSpec, data: DataSpec, on_progress: Progress = silent) -> JudgedTask:
    """Load `eval.task` and let it judge its own solutions, right and wrong.

    Raises:
        InputError: a tool is missing, or the task's files; or no problem can be judged here.
    """
    problems = load_task(eval_spec, data)
    record, sandbox, limits = judge_record(eval_spec), open_sandbox(eval_spec.sandbox, SIMULATOR), limits_of(eval_spec)
    on_progress("references", 0, len(problems))
    references = judge_references(problems, sandbox, limits, eval_spec.workers, lambda done, total: on_progress("references", done, total))
    if not references.usable:
        raise InputError(
            f"No problem of eval.task={eval_spec.task} can be judged here: every one fails itself ({dict(references.left_out)})."
        )
    return JudgedTask(references, task_digest(problems), record, sandbox, limits, eval_spec.workers)


def evaluate_endpoint(
    base_url: str,
    api_key: str,
    model: str,
    eval_spec: EvalSpec,
    task: JudgedTask,
    folder: Path,
    on_progress: Progress = silent,
    *,
    model_digest: str = "",
    origin: Origin | None = None,
    answers: Path | None = None,
) -> EvalResult:
    """Evaluate `model` on `eval.task` and leave `judged.jsonl` and `result.json` in `folder`, answers in `samples.jsonl`.

    Started again it asks only for answers that are missing, and judges all.

    Args:
        base_url: an OpenAI-compatible endpoint, with or without `/v1`.
        api_key: sent as bearer token.
        model: model id as the endpoint lists it.
        eval_spec: task, sampling and limits.
        task: from `open_task`.
        folder: where verdicts and the result are kept.
        on_progress: see `Progress`.
        model_digest: digest of weights and adapter behind the id, so that answers of an earlier model of this name are not reused.
        origin: the server whose answers count; None: the one that answers now.
        answers: folder of the answers, which outlive a judge; None: `folder`.

    Raises:
        InputError: the endpoint does not know key or model, or the folder holds answers of another evaluation.
        GenerationError: the endpoint failed for good; answers so far are kept.
        ServerChangedError: another server has answered.
    """
    began = time.monotonic()
    problems = task.references.usable
    origin = origin or Origin(base_url, api_key)
    record = {"task": eval_spec.task, "task_digest": task.task_digest, "sampling": sampling_record(eval_spec)}
    samples = run_async(
        generate(
            base_url,
            api_key,
            model,
            problems,
            eval_spec,
            origin=origin,
            path=(answers or folder) / "samples.jsonl",
            identity={**record, "model": model, "model_digest": model_digest, "server": origin.models},
            on_progress=lambda done, total: on_progress("generate", done, total),
        )
    )
    verdicts = judge_samples(problems, samples, lambda answers: task.judge(answers, on_progress))
    judged = folder / "judged.jsonl"
    write_text(judged, "".join(canonical_json({**asdict(s), **asdict(v)}) + "\n" for s, v in zip(samples, verdicts, strict=True)))
    left_out = task.references.left_out
    result = EvalResult(
        model=model,
        splits=split_results(problems, samples, verdicts, eval_spec),
        comparable_on={
            "form": RECORD_FORM,
            **record,
            "sampling": sampling_record(eval_spec) | not_sent(samples),
            "prompts": prompts_record(base_url, api_key, model, problems, samples),
            "excluded": [name for name, _ in left_out],
            "judge": dict(task.judge_record),
        },
        excluded=left_out,
        errors=dict(Counter(sample.error for sample in samples if sample.error)),
        prompt_tokens=sum(sample.prompt_tokens for sample in samples),
        completion_tokens=sum(sample.completion_tokens for sample in samples),
        cut_at_max_tokens=cut_of([sample.finish_reason for sample in samples if not sample.error]),
        seconds=time.monotonic() - began,
        samples_path=str(judged),
        warnings=((task.sandbox.warning,) if task.sandbox.warning else ()) + warnings_of(samples),
    )
    write_json(folder / RESULT, result.to_json())
    return result


def not_sent(samples: Sequence[Sample]) -> dict[str, str]:
    """The parameters that the endpoint refused and answered without, for the record of the sampling."""
    answered = [sample for sample in samples if not sample.error]
    without = Counter(name for sample in answered for name in left_out(sample.changes))
    return {
        name: "not sent" if count == len(answered) else f"not sent with {count} of {len(answered)} requests"
        for name, count in without.items()
    }


def warnings_of(samples: Sequence[Sample]) -> tuple[str, ...]:
    """What was odd about the answers, each with the number of them."""
    said = [f"{count} answers: {note}" for note, count in Counter(sample.note for sample in samples if sample.note).items()]
    said += unended(sum(not sample.finish_reason for sample in samples if not sample.error))
    changes = Counter(change for sample in samples for change in sample.changes)
    return (*said, *(changed(change, count) for change, count in sorted(changes.items())))


def unended(count: int) -> list[str]:
    """A warning of `count` answers that came without a reason for their end."""
    return [f"{count} answers do not say how they ended, so whether they were cut is not known"] if count else []


def changed(change: str, count: int) -> str:
    """A warning of one of `answers.Parameters.changes`."""
    name, renamed, other = change.partition(" as ")
    return f"the endpoint refuses {name}; {count} requests were sent {f'with {other}' if renamed else 'without it'}"


def judge_samples(
    problems: Sequence[Problem], samples: Sequence[Sample], judge_answers: Callable[[Sequence[tuple[Problem, str]]], Sequence[Verdict]]
) -> list[Verdict]:
    """Return a verdict for every sample; those that the endpoint refused to answer get `no_answer` without a simulation."""
    by_id = {problem.id: problem for problem in problems}
    answered = [sample for sample in samples if not sample.error]
    judged = iter(judge_answers([(by_id[sample.problem], sample.text) for sample in answered]))
    return [Verdict(False, "no_answer", sample.error) if sample.error else next(judged) for sample in samples]
