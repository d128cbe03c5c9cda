"""Evaluate one model behind an endpoint on one task: references first, then samples, verdicts and pass@k.

The result says nothing about other models; comparing results is the report's work, and `EvalResult.comparable_on` says what
must be equal for it.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from crossmesh.errors import InputError
from crossmesh.evaluate.generate import generate
from crossmesh.evaluate.judge import REASONS, SIMULATOR, Verdict, judge_all, judge_references, limits_of, silent, simulator_version
from crossmesh.evaluate.passk import PassAtK, estimate
from crossmesh.evaluate.problems import Problem, task_digest
from crossmesh.evaluate.samples import Sample
from crossmesh.evaluate.sandbox import open_sandbox
from crossmesh.evaluate.tasks import load_task
from crossmesh.files import canonical_json, read_json, write_json, write_text
from crossmesh.spec.evaluation import EvalSpec
from crossmesh.spec.training import DataSpec

Progress = Callable[[str, int, int], None]
"""Called with the stage (`references`, `generate`, `judge`), how much is done and how much there is."""


@dataclass(frozen=True)
class SplitResult:
    """How a model did on one part of a task."""

    split: str
    problems: int
    samples: int
    passed: int
    """Samples that passed."""
    pass_at_k: tuple[PassAtK, ...]
    reasons: Mapping[str, int]
    """Samples by verdict; only reasons that occurred."""

    @property
    def pass_at_1(self) -> PassAtK | None:
        """The estimate for k=1, where it was asked for."""
        return next((estimate for estimate in self.pass_at_k if estimate.k == 1), None)


@dataclass(frozen=True)
class EvalResult:
    """What an evaluation found. JSON-serialisable: `to_json` and `from_json`."""

    model: str
    splits: tuple[SplitResult, ...]
    comparable_on: Mapping[str, Any]
    """What must be equal for two results to be set side by side: task, its digest, exclusions, sampling, simulator, sandbox."""
    excluded: tuple[tuple[str, str], ...]
    """Problems whose own reference fails here, with the reason; they count nowhere."""
    errors: Mapping[str, int]
    """Prompts that the endpoint refused, by kind; they count as failed."""
    prompt_tokens: int
    completion_tokens: int
    cut_at_max_tokens: int
    """Answers that ended because of `eval.max_tokens`."""
    seconds: float
    samples_path: str
    """`.jsonl` with each answer and its verdict."""
    warnings: tuple[str, ...]

    def split(self, name: str) -> SplitResult:
        """Return a split by name."""
        for split in self.splits:
            if split.split == name:
                return split
        raise InputError(f"The evaluation has no split {name!r}. It has: {', '.join(split.split for split in self.splits)}.")

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Rebuild a result from `to_json`'s values."""
        splits = tuple(
            SplitResult(**{**split, "pass_at_k": tuple(PassAtK(**one) for one in split["pass_at_k"])}) for split in value["splits"]
        )
        excluded = tuple((str(name), str(reason)) for name, reason in value["excluded"])
        return cls(**{**value, "splits": splits, "excluded": excluded, "warnings": tuple(value["warnings"])})


def read_result(folder: Path) -> EvalResult:
    """Read the result that `evaluate_endpoint` left in `folder`."""
    return EvalResult.from_json(read_json(folder / "result.json"))


def sampling_record(eval_spec: EvalSpec) -> dict[str, Any]:
    """Return what shapes the answers on any engine."""
    names = ("temperature", "top_p", "max_tokens", "samples", "seed")
    return {name: getattr(eval_spec, name) for name in names}


def evaluate_endpoint(
    base_url: str,
    api_key: str,
    model: str,
    eval_spec: EvalSpec,
    data: DataSpec,
    folder: Path,
    on_progress: Progress = silent,
    *,
    model_digest: str = "",
) -> EvalResult:
    """Evaluate `model` on `eval.task` and leave `samples.jsonl`, `judged.jsonl` and `result.json` in `folder`.

    Started again in the same folder it asks only for answers that are missing.

    Args:
        base_url: an OpenAI-compatible endpoint, with or without `/v1`.
        api_key: sent as bearer token.
        model: model id as the endpoint lists it.
        eval_spec: task, sampling and limits.
        data: the dataset that the task's problems come from.
        folder: where answers and the result are kept.
        on_progress: see `Progress`.
        model_digest: digest of weights and adapter behind the id, so that answers of an earlier model of this name are not reused.

    Raises:
        InputError: a tool is missing, the endpoint does not know key or model, or `folder` holds answers of another evaluation.
        GenerationError: the endpoint failed for good; answers so far are kept.
    """
    began = time.monotonic()
    sandbox, simulator = open_sandbox(eval_spec.sandbox, SIMULATOR), simulator_version()
    limits = limits_of(eval_spec)
    problems = load_task(eval_spec, data)
    on_progress("references", 0, len(problems))
    references = judge_references(problems, sandbox, limits, eval_spec.workers)
    on_progress("references", len(problems), len(problems))
    if not references.usable:
        raise InputError(
            f"No problem of eval.task={eval_spec.task} can be judged here: every reference failed ({dict(references.excluded)})."
        )
    record = {"task": eval_spec.task, "task_digest": task_digest(problems), "sampling": sampling_record(eval_spec)}
    samples = asyncio.run(
        generate(
            base_url,
            api_key,
            model,
            references.usable,
            eval_spec,
            path=folder / "samples.jsonl",
            identity={**record, "model": model, "model_digest": model_digest},
            on_progress=lambda done, total: on_progress("generate", done, total),
        )
    )
    verdicts = judge_samples(
        references.usable,
        samples,
        lambda answers: judge_all(answers, sandbox, limits, eval_spec.workers, lambda done, total: on_progress("judge", done, total)),
    )
    judged = folder / "judged.jsonl"
    write_text(judged, "".join(canonical_json({**asdict(s), **asdict(v)}) + "\n" for s, v in zip(samples, verdicts, strict=True)))
    names = sorted(name for name, _ in references.excluded)
    result = EvalResult(
        model=model,
        splits=split_results(references.usable, samples, verdicts, eval_spec),
        comparable_on={**record, "excluded": names, "simulator": simulator, "sandbox": sandbox.kind},
        excluded=references.excluded,
        errors=dict(Counter(sample.error for sample in samples if sample.error)),
        prompt_tokens=sum(sample.prompt_tokens for sample in samples),
        completion_tokens=sum(sample.completion_tokens for sample in samples),
        cut_at_max_tokens=sum(sample.finish_reason == "length" for sample in samples),
        seconds=time.monotonic() - began,
        samples_path=str(judged),
        warnings=(sandbox.warning,) if sandbox.warning else (),
    )
    write_json(folder / "result.json", result.to_json())
    return result


def judge_samples(
    problems: Sequence[Problem], samples: Sequence[Sample], judge_answers: Callable[[Sequence[tuple[Problem, str]]], Sequence[Verdict]]
) -> list[Verdict]:
    """Return a verdict for every sample; those that the endpoint refused to answer get `no_answer` without a simulation."""
    by_id = {problem.id: problem for problem in problems}
    answered = [sample for sample in samples if not sample.error]
    judged = iter(judge_answers([(by_id[sample.problem], sample.text) for sample in answered]))
    return [Verdict(False, "no_answer", sample.error) if sample.error else next(judged) for sample in samples]


def split_results(
    problems: Sequence[Problem], samples: Sequence[Sample], verdicts: Sequence[Verdict], eval_spec: EvalSpec
) -> tuple[SplitResult, ...]:
    """Count verdicts by split, splits in the order of the problems, and estimate each pass@k that was asked for."""
    split_of = {problem.id: problem.split for problem in problems}
    results = []
    for split in dict.fromkeys(split_of.values()):
        mine = [(s, v) for s, v in zip(samples, verdicts, strict=True) if split_of[s.problem] == split]
        asked, right = Counter(s.problem for s, _ in mine), Counter(s.problem for s, v in mine if v.passed)
        counts = [(n, right[problem]) for problem, n in asked.items()]
        seen = Counter(verdict.reason for _, verdict in mine)
        results.append(
            SplitResult(
                split=split,
                problems=len(asked),
                samples=len(mine),
                passed=sum(right.values()),
                pass_at_k=tuple(estimate(counts, k, eval_spec.seed) for k in eval_spec.k),
                reasons={reason: seen[reason] for reason in REASONS if seen[reason]},
            )
        )
    return tuple(results)
