"""What `crossmesh evaluate` does: judge the task itself, evaluate what the spec names, and compare it problem by problem."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from crossmesh.adapters.peft_format import adapter_digest
from crossmesh.cluster.session import ray_session, require_chips
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.console import Console
from crossmesh.errors import InputError
from crossmesh.evaluate.harness import open_task
from crossmesh.evaluate.paired import LEVEL, Paired, compare_counts, holm
from crossmesh.evaluate.results import RECORD, EvalResult
from crossmesh.pipeline.evaluation import BASE, Adapter, Evaluation, check_evaluation, evaluate_models, evaluate_url
from crossmesh.pipeline.serving import named_adapters
from crossmesh.plan.gate import gate_serving
from crossmesh.plan.planner import own_planner
from crossmesh.track.flatten import flatten
from crossmesh.track.tracked_run import TAG_KIND
from crossmesh.track.tracker import Tracker
from crossmesh.track.trackers import open_tracker
from crossmesh.trial.trial import fetch


@dataclass(frozen=True)
class Compared:
    """Two models on one part of a task."""

    one: str
    other: str
    split: str
    paired: Paired
    differing: tuple[str, ...]
    """Keys of how they were examined that are not equal: then the difference is not the models' alone."""
    matters: float = 0.0
    """The smallest difference that matters, as a share."""
    tests: int = 1
    """Comparisons that were made together; the p-value is corrected for them (Holm)."""
    p_value: float | None = None
    """Corrected."""

    def json(self) -> dict[str, Any]:
        """As JSON values."""
        values = {"one": self.one, "other": self.other, "split": self.split, "comparable": not self.differing}
        pair = asdict(self.paired)
        return {
            **values,
            "differing": list(self.differing),
            "pass_at_k": [pair.pop("one"), pair.pop("other")],
            **pair,
            "shown": self.shown,
            "p_corrected": self.p_corrected,
            "tests": self.tests,
            "verdict": self.verdict,
        }

    @property
    def p_corrected(self) -> float:
        """The p-value, corrected for how many comparisons were made."""
        return self.paired.p_value if self.p_value is None else self.p_value

    @property
    def shown(self) -> bool:
        """Whether there is a difference of the models: examined alike, more than chance, and as large as matters."""
        significant = self.p_corrected < 1 - LEVEL and abs(self.paired.difference) >= self.matters
        return significant and bool(self.paired.difference) and not self.differing

    @property
    def verdict(self) -> str:
        """In words."""
        if self.differing:
            return "not comparable"
        if self.shown:
            return "shown"
        low, high = self.paired.low, self.paired.high
        inside = max(abs(low), abs(high)) <= self.matters
        small = abs(self.paired.difference) < self.matters and self.p_corrected < 1 - LEVEL
        return f"equal within {100 * self.matters:g} points" if inside or small else "no difference shown"


def corrected(compared: Sequence[Compared], matters: float) -> tuple[Compared, ...]:
    """The comparisons of one job with Holm's corrected p-values, and the smallest difference that matters, as a share."""
    p_values = holm([one.paired.p_value for one in compared])
    return tuple(replace(one, matters=matters, tests=len(compared), p_value=p) for one, p in zip(compared, p_values, strict=True))


def judge_task(spec: ExperimentSpec, console: Console) -> dict[str, Any]:
    """Let the task judge its own solutions, right and wrong, and say which problems pass, fail and are left out."""
    if spec.eval.task == "lm_eval":
        raise InputError("eval.only=references with eval.task=lm_eval: its tasks have no solutions to run. Leave it out.")
    with console.stage(f"references: {spec.eval.task}") as stage:
        task = open_task(spec.eval, spec.data, stage.progress)
    references = task.references
    return {
        "task": spec.eval.task,
        "passed": len(references.usable),
        "failed": len(references.blind),
        "excluded": sorted(name for name, _ in references.excluded),
        "reasons": dict(references.left_out),
        "simulator": task.judge_record["simulator"],
        "sandbox": task.sandbox.kind,
    }


def evaluate(spec: ExperimentSpec, console: Console, against: str, *, force: bool) -> tuple[tuple[Evaluation, ...], tuple[Compared, ...]]:
    """Evaluate the model at `eval.url`, or the base and `serve.adapters` through one server of our own.

    Each adapter is compared with the base; with `against`, an earlier evaluation's run id or how it begins, each model with that.
    """
    check_evaluation(spec)
    tracker = open_tracker(spec.tracking, spec.storage)
    earlier = _stored(tracker, against) if against else None
    found = (evaluate_url(spec, tracker, console, force=force),) if spec.eval.url else _on_own_server(spec, tracker, console, force=force)
    base = next((one for one in found if one.name == BASE), None)
    pairs = [(one, base) for one in found if base and one is not base] + ([(one, earlier) for one in found] if earlier else [])
    compared = [compared for one, other in pairs for compared in compare(one, other)]
    return found, corrected(compared, spec.matters.pass_at_k / 100)


def _on_own_server(spec: ExperimentSpec, tracker: Tracker, console: Console, *, force: bool) -> tuple[Evaluation, ...]:
    gate_serving(spec, own_planner(spec))
    with ExitStack() as stack:
        stack.enter_context(ray_session(spec.storage))
        require_chips(spec.hardware.slice.device, spec.serving_chips)
        adapters = tuple(Adapter(name, folder, adapter_digest(folder)) for name, folder in named_adapters(spec).items())
        with console.stage(f"model: {spec.model.weights}"):
            model = fetch(spec)
        return tuple(evaluate_models(spec, model, adapters, tracker, console, None, force=force).values())


def _stored(tracker: Tracker, prefix: str) -> Evaluation:
    """The evaluation that an earlier call tracked."""
    tracker.require_kept("against", prefix)
    runs = [run for run in tracker.matching(prefix) if run.tags.get(TAG_KIND) == "evaluate" and run.status == "FINISHED"]
    if len(runs) != 1:
        raise InputError(
            f"against={prefix!r} begins the id of {len(runs)} finished evaluations of {tracker.uri}. Give the run_id that an evaluation "
            f"printed, or look for it with: {tracker.ui_command}"
        )
    result = EvalResult.from_json(tracker.read_json(runs[0].run_id, "result.json"))
    record = tracker.read_json(runs[0].run_id, RECORD)
    return Evaluation(f"{result.model} {runs[0].run_id[:8]}", result, record, runs[0].run_id, skipped=True)


def compare(one: Evaluation, other: Evaluation) -> Iterator[Compared]:
    """Compare two evaluations on every split and every k that both have; other problems cannot be compared and are not.

    Raises:
        InputError: they have no problem in common that both were asked.
    """
    differing = differing_keys(one.record, other.record)
    theirs = {split.split: split for split in other.result.splits}
    pairs = [(split, theirs[split.split]) for split in one.result.splits if split.split in theirs]
    pairs = [(mine, its) for mine, its in pairs if mine.counts and mine.counts.keys() == its.counts.keys()]
    if not pairs:
        raise InputError(
            f"{one.name} and {other.name} answered different problems; they cannot be compared. {', '.join(differing)} differ."
        )
    for mine, its in pairs:
        for k in sorted({estimate.k for estimate in mine.pass_at_k} & {estimate.k for estimate in its.pass_at_k}):
            yield Compared(one.name, other.name, mine.split, compare_counts(mine.counts, its.counts, k), differing)


def differing_keys(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, ...]:
    """Dotted keys at which two records are not equal."""
    mine, theirs = flatten(one), flatten(other)
    return tuple(sorted(key for key in {*mine, *theirs} if mine.get(key) != theirs.get(key)))


def values_of(spec: ExperimentSpec, found: Sequence[Evaluation], compared: Sequence[Compared]) -> dict[str, Any]:
    """The job's result as JSON values."""
    return {
        "task": spec.eval.task,
        "models": {one.name: _model_json(one) for one in found},
        "excluded": sorted({name for one in found for name, _ in one.result.excluded}),
        "comparisons": [pair.json() for pair in compared],
    }


def _model_json(one: Evaluation) -> dict[str, Any]:
    result = one.result
    splits = {
        split.split: {
            "problems": split.problems,
            "samples": split.samples,
            "passed": split.passed,
            "pass_at_k": {str(estimate.k): asdict(estimate) for estimate in split.pass_at_k},
            "reasons": dict(split.reasons),
        }
        for split in result.splits
    }
    tokens = {"prompt_tokens": result.prompt_tokens, "completion_tokens": result.completion_tokens}
    kept = {"run_id": one.run_id, "already_done": one.skipped, "samples": result.samples_path, "seconds": result.seconds}
    more = {"cut_at_max_tokens": result.cut_at_max_tokens, "errors": dict(result.errors), "warnings": list(result.warnings)}
    return {"splits": splits, "metrics": dict(result.metrics), **tokens, **more, **kept}
