"""Evaluating models behind one endpoint, each once, under a record of how it was examined: the base and its adapters, or one at a URL.

Which adapters there are and what the results mean is the caller's.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossmesh.bench.endpoint import fingerprint_of, is_emulated, server_at
from crossmesh.bench.load import Target
from crossmesh.config.classes import settings
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.console import Console
from crossmesh.evaluate.examined import engine_of, surroundings_of
from crossmesh.evaluate.harness import JudgedTask, evaluate_endpoint, open_task
from crossmesh.evaluate.judge import SIMULATOR
from crossmesh.evaluate.judging import judge_record
from crossmesh.evaluate.lm_eval import check_tasks, evaluate_harness, harness_python
from crossmesh.evaluate.problems import task_digest
from crossmesh.evaluate.results import RECORD, RECORD_FORM, SURROUNDINGS, EvalResult, read_result
from crossmesh.evaluate.sandbox import open_sandbox
from crossmesh.evaluate.tasks import load_task
from crossmesh.files import canonical_json, digest_file, digest_text, read_json, write_json
from crossmesh.models.weights.fetch import ModelFolder
from crossmesh.serve.adapters import ServedBase
from crossmesh.serve.app import start_server
from crossmesh.serve.record import engine_record
from crossmesh.serve.vllm.settings import engine_settings
from crossmesh.server_identity import Origin
from crossmesh.track.provenance import gather_provenance
from crossmesh.track.tracked_run import TAG_ADAPTER, TAG_BASE, TAG_EVALUATION, TAG_SERVER, TAG_SUBJECT
from crossmesh.track.tracker import RunSettings, Tracker
from crossmesh.trial.trial import cache_folder

BASE = "base"
_NO_FILES: Mapping[str, str] = {}
_ASKED = ("task", "variant", "tasks", "samples", "temperature", "top_p", "max_tokens", "seed")
"""Keys of `eval` that shape answers."""


@dataclass(frozen=True)
class Adapter:
    """A trained adapter to be served under a name."""

    name: str
    folder: Path
    digest: str


@dataclass(frozen=True)
class Evaluation:
    """One evaluated model."""

    name: str
    result: EvalResult
    record: Mapping[str, Any]
    """How it was examined: task, sampling, simulator, engine. Equal for results that may be compared."""
    run_id: str
    skipped: bool


def served_base(spec: ExperimentSpec, model: ModelFolder) -> ServedBase:
    """The base model as a server has it."""
    return ServedBase(BASE, model.path, model.weights_digest, cache_folder(spec) / "serving")


def check_evaluation(spec: ExperimentSpec) -> None:
    """Raise `InputError` for a task without its files, or tools that are missing, before anything is started."""
    spec.check_evaluation()
    if spec.eval.task == "lm_eval":
        harness_python()
        check_tasks(spec.eval)
    else:
        load_task(spec.eval, spec.data)
        judge_record(spec.eval)
        open_sandbox(spec.eval.sandbox, SIMULATOR)


class Examiner:
    """Evaluates models on the task of one spec; the task is loaded, and judges its own solutions, when the first is.

    Args:
        spec: `eval` and `data` say what is asked.
        tracker: where each evaluation is a run.
        console: shows stages and progress.
        parent: run that those runs belong under.
    """

    def __init__(self, spec: ExperimentSpec, tracker: Tracker, console: Console, parent: str | None = None) -> None:
        self._spec, self._tracker, self._console, self._parent = spec, tracker, console, parent
        self._task: JudgedTask | None = None

    def ready(self) -> None:
        """Let the task judge its own solutions now, not while a server waits."""
        if self._spec.eval.task != "lm_eval":
            self._judged_task()

    def kept(self, name: str, identity: object, *, force: bool) -> Evaluation | None:
        """The evaluation of `name` that an earlier call finished; with `force` none, and what was kept of it is removed.

        `identity` is all that it depends on beside the task.
        """
        answers = self._answers(name, identity)
        if force:
            shutil.rmtree(answers, ignore_errors=True)
        folder = self._verdicts(answers)
        if not (folder / "run.json").is_file():
            return None
        kept = read_json(folder / "run.json")
        return Evaluation(name, read_result(folder), kept["record"], kept["run_id"], skipped=True)

    def examine(
        self,
        name: str,
        identity: object,
        target: Target,
        said: Mapping[str, Any] | None,
        tags: Mapping[str, str],
        origin: Origin,
        files: Mapping[str, str] = _NO_FILES,
    ) -> Evaluation:
        """Evaluate the model `target.model`, called `name`, going on where an interrupted call was, and track it.

        Args:
            name: what it is called in results.
            identity: as for `kept`.
            target: the endpoint.
            said: fingerprint of the server; None of one that does not say.
            tags: for the run.
            origin: the server whose answers count.
            files: digests of the model's files that say how it is asked.
        """
        answers = self._answers(name, identity)
        folder = self._verdicts(answers)
        run_id = self._tracker.start(
            f"evaluate {name}",
            "evaluate",
            parent=self._parent,
            params=RunSettings({"eval": self._spec.eval}, emulated=is_emulated(said or {})),
            tags={**tags, TAG_SUBJECT: name},
        )
        self._tracker.provenance(run_id, gather_provenance())
        status = "FAILED"
        try:
            with self._console.stage(f"evaluate: {name}") as stage, self._tracker.system_metrics(run_id):
                url, spec = f"{target.origin}/v1", self._spec.eval
                if spec.task == "lm_eval":
                    result = evaluate_harness(url, target.key, target.model, spec, folder, stage.progress, origin=origin)
                else:
                    digest = digest_text(canonical_json(identity))
                    task = self._judged_task()
                    result = evaluate_endpoint(
                        url,
                        target.key,
                        target.model,
                        spec,
                        task,
                        folder,
                        stage.progress,
                        model_digest=digest,
                        origin=origin,
                        answers=answers,
                    )
            record = {**result.comparable_on, "engine": engine_of(said) if said else {"unknown": target.origin}}
            self._track(run_id, result, record)
            around = {**surroundings_of(said or {}), "files": dict(files), "settings": settings(self._spec, ("eval", "serve"))}
            self._tracker.artifact_json(run_id, SURROUNDINGS, around)
            write_json(folder / "run.json", {"run_id": run_id, "record": record})
            status = "FINISHED"
        except KeyboardInterrupt:
            status = "KILLED"
            raise
        finally:
            self._tracker.finish(run_id, status)
        return Evaluation(name, result, record, run_id, skipped=False)

    def _judged_task(self) -> JudgedTask:
        if self._task is None:
            with self._console.stage(f"task: {self._spec.eval.task}") as stage:
                self._task = open_task(self._spec.eval, self._spec.data, stage.progress)
                left_out = self._task.references.left_out
                stage.say(f"{len(self._task.references.usable)} problems judge their own solutions right; {len(left_out)} are left out")
        return self._task

    def _answers(self, name: str, identity: object) -> Path:
        """One folder for each model, task and engine: the answers, whoever judges them."""
        asked = {key: getattr(self._spec.eval, key) for key in _ASKED}
        return self._spec.storage.path / "evaluations" / digest_text(canonical_json([name, identity, asked, self._task_files()]))[:16]

    def _verdicts(self, answers: Path) -> Path:
        """One folder within it for each judge, and each form that its results have."""
        if self._spec.eval.task == "lm_eval":
            judge: object = harness_python()[1]
        else:  # A reference that is corrected may make a problem one that judges.
            own = [[problem.id, problem.reference, problem.defect] for problem in load_task(self._spec.eval, self._spec.data)]
            judge = [judge_record(self._spec.eval), digest_text(canonical_json(own))]
        return answers / f"judged-{digest_text(canonical_json([RECORD_FORM, judge, self._spec.eval.k]))[:16]}"

    def _task_files(self) -> object:
        """What is asked, by digest: the task's problems; of lm-evaluation-harness, which digests its own, what `eval.path` holds."""
        if self._spec.eval.task != "lm_eval":
            return task_digest(load_task(self._spec.eval, self._spec.data))
        files = sorted(Path(self._spec.eval.path).expanduser().rglob("*")) if self._spec.eval.path else []
        return [self._spec.eval.path, *([str(file), digest_file(file)] for file in files if file.is_file())]

    def _track(self, run_id: str, result: EvalResult, record: Mapping[str, Any]) -> None:
        values = {f"eval/{_key(split.split)}/pass_at_{one.k}": one.value for split in result.splits for one in split.pass_at_k}
        values |= {f"eval/{_key(name)}": value for name, value in result.metrics.items()}
        self._tracker.metrics(run_id, {**values, "eval/completion_tokens": result.completion_tokens, "eval/seconds": result.seconds}, 0)
        task, digest = self._spec.eval.task, str(record["task_digest"])
        self._tracker.dataset(run_id, name=task, digest=digest, source=self._spec.eval.path or task, context="evaluation")
        self._tracker.artifact_json(run_id, RECORD, dict(record))
        self._tracker.tags(run_id, {TAG_EVALUATION: digest_text(canonical_json(dict(record)))})
        self._tracker.artifact_json(run_id, "result.json", result.to_json())
        self._tracker.artifact_file(run_id, Path(result.samples_path), "samples")


def evaluate_models(
    spec: ExperimentSpec,
    model: ModelFolder,
    adapters: tuple[Adapter, ...],
    tracker: Tracker,
    console: Console,
    parent: str | None,
    *,
    force: bool,
) -> dict[str, Evaluation]:
    """Evaluate the base and every adapter through one server; it is started only when something is not done yet."""
    base = served_base(spec, model)
    served = [base.adapter(adapter.name, adapter.folder) for adapter in adapters]
    engine = engine_settings(spec, base, served)
    digests = {adapter.name: adapter.digest for adapter in adapters}
    identities = {
        name: [model.weights_digest, model.tokenizer_digest, model.template_digest, digests.get(name), engine_record(engine)]
        for name in engine.models
    }
    files = {"chat_template": model.template_digest, "tokenizer": model.tokenizer_digest}
    examiner = Examiner(spec, tracker, console, parent)
    found = {name: kept for name, identity in identities.items() if (kept := examiner.kept(name, identity, force=force))}
    missing = [name for name in engine.models if name not in found]
    if not missing:
        return found
    examiner.ready()
    with console.stage(f"serve: {', '.join(engine.models)}") as stage:
        server = start_server(spec, base, served, on_progress=stage.say, private="evaluate")
        stage.say(f"ready at {server.base_url} after {server.start_s:.0f} s")
    with server:
        origin = Origin(server.base_url, server.api_key, server.fingerprint["sha256"])
        for name in missing:
            tags = {TAG_BASE: model.weights_digest, TAG_SERVER: server.fingerprint["sha256"]}
            tags |= {TAG_ADAPTER: digests[name]} if name in digests else {}
            target = Target(server.base_url.removesuffix("/v1"), name, server.api_key)
            found[name] = examiner.examine(name, identities[name], target, server.fingerprint, tags, origin, files)
    return {name: found[name] for name in engine.models}


def evaluate_url(spec: ExperimentSpec, tracker: Tracker, console: Console, *, force: bool) -> Evaluation:
    """Evaluate the model `eval.model` at `eval.url`.

    Raises `InputError` when the endpoint does not answer as OpenAI's do, or has no such model, `ServerChangedError` when another server
    answers there meanwhile.
    """
    target = server_at(spec.eval.url, spec.eval.model, os.environ.get(spec.eval.api_key_env, ""), "eval")
    said = fingerprint_of(target)
    origin = Origin(target.origin, target.key, said["sha256"] if said else None)
    identity = [target.model, said["sha256"] if said else target.origin]
    examiner = Examiner(spec, tracker, console)
    if kept := examiner.kept(target.model, identity, force=force):
        return kept
    examiner.ready()
    return examiner.examine(target.model, identity, target, said, {TAG_SERVER: said["sha256"]} if said else {}, origin)


def _key(name: str) -> str:
    """`name` as every tracker takes it in the name of a metric."""
    return name.replace(",", "/")
