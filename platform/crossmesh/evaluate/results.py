"""What an evaluation found, as values that are kept as JSON; comparing two is `paired`'s."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from crossmesh.config.evaluation import EvalSpec
from crossmesh.errors import InputError
from crossmesh.evaluate.judge import REASONS, Verdict
from crossmesh.evaluate.passk import PassAtK, estimate
from crossmesh.evaluate.problems import Problem
from crossmesh.evaluate.samples import Sample
from crossmesh.files import read_json

RESULT = "result.json"
"""Name of the file in the folder of an evaluation."""
RECORD, SURROUNDINGS = "records/evaluation.json", "records/surroundings.json"
"""Artifacts of an evaluation: how the model was examined, and what was there and decided no answer."""
RECORD_FORM = 3
"""Of the record of how a model was examined; raised when the record says more, or says it otherwise."""


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
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """(answers, right answers) by problem."""

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
    """What must be equal for two results to be set side by side: task, its digest, prompts, exclusions, sampling, judge."""
    excluded: tuple[tuple[str, str], ...]
    """Problems that cannot be judged here, with the reason (`References.left_out`); they count nowhere."""
    errors: Mapping[str, int]
    """Prompts that the endpoint refused or sent no answer to, by kind; they count as failed."""
    prompt_tokens: int
    completion_tokens: int
    cut_at_max_tokens: int | None
    """Answers that ended at the largest number of tokens; None: the endpoint does not say how any ended."""
    seconds: float
    samples_path: str
    """`.jsonl` with each answer and its verdict."""
    warnings: tuple[str, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What lm-evaluation-harness says of each task, by `task/metric,filter`; empty for other tasks."""

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
        splits = tuple(_split_from_json(split) for split in value["splits"])
        excluded = tuple((str(name), str(reason)) for name, reason in value["excluded"])
        return cls(**{**value, "splits": splits, "excluded": excluded, "warnings": tuple(value["warnings"])})


def _split_from_json(value: Mapping[str, Any]) -> SplitResult:
    counts = {str(problem): (int(asked), int(right)) for problem, (asked, right) in value["counts"].items()}
    return SplitResult(**{**value, "pass_at_k": tuple(PassAtK(**one) for one in value["pass_at_k"]), "counts": counts})


def cut_of(finish_reasons: Sequence[str]) -> int | None:
    """How many of the answers that ended for these reasons were cut; None when no reason is known."""
    return sum(reason == "length" for reason in finish_reasons) if any(finish_reasons) else None


def read_result(folder: Path) -> EvalResult:
    """Read the result that an evaluation left in `folder`."""
    return EvalResult.from_json(read_json(folder / RESULT))


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
                counts={problem: (n, right[problem]) for problem, n in asked.items()},
            )
        )
    return tuple(results)
