"""Evaluating models behind one server: the base and any adapters, each once, under a record of how it was examined.

Which adapters there are and what the results mean is the caller's.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crossmesh.console import Console
from crossmesh.evaluate.harness import EvalResult, evaluate_endpoint, read_result
from crossmesh.files import canonical_json, digest_text, read_json, write_json
from crossmesh.models.weights import ModelFolder
from crossmesh.serve.adapters import ServedBase
from crossmesh.serve.app import start_server
from crossmesh.serve.engine import EngineSettings, engine_settings
from crossmesh.serve.record import engine_record
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.sweep.trial import cache_folder
from crossmesh.track.provenance import gather_provenance
from crossmesh.track.tracker import Tracker

BASE = "base"


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


def evaluate_models(
    spec: ExperimentSpec, model: ModelFolder, adapters: tuple[Adapter, ...], tracker: Tracker, console: Console, parent: str, *, force: bool
) -> dict[str, Evaluation]:
    """Evaluate the base and every adapter through one server; it is started only when something is not done yet."""
    base = served_base(spec, model)
    served = [base.adapter(adapter.name, adapter.folder) for adapter in adapters]
    settings = engine_settings(spec, base, served)
    folders = {name: _folder(spec, model, adapters, settings, name) for name in settings.models}
    done = {} if force else {name: folder for name, folder in folders.items() if (folder / "run.json").is_file()}
    evaluations = {name: _read(name, folder) for name, folder in done.items()}
    missing = [name for name in settings.models if name not in done]
    if not missing:
        return evaluations
    with console.stage(f"serve: {', '.join(settings.models)}") as stage:
        server = start_server(spec, base, served, on_progress=stage.say)
        stage.say(f"ready at {server.base_url} after {server.start_s:.0f} s")
    with server:
        for name in missing:
            digest = canonical_json([model.weights_digest, *[adapter.digest for adapter in adapters if adapter.name == name]])
            run_id = tracker.start(f"evaluate {name}", "evaluate", parent=parent, params=spec.eval)
            tracker.provenance(run_id, gather_provenance())
            status = "FAILED"
            try:
                with console.stage(f"evaluate: {name}") as stage, tracker.system_metrics(run_id):
                    result = evaluate_endpoint(
                        server.base_url, server.api_key, name, spec.eval, spec.data, folders[name], stage.progress, model_digest=digest
                    )
                record = {**result.comparable_on, "engine": engine_record(settings)}
                _track(tracker, run_id, result, record)
                write_json(folders[name] / "run.json", {"run_id": run_id, "record": record})
                status = "FINISHED"
            except KeyboardInterrupt:
                status = "KILLED"
                raise
            finally:
                tracker.finish(run_id, status)
            evaluations[name] = Evaluation(name, result, record, run_id, skipped=False)
    return evaluations


def _folder(spec: ExperimentSpec, model: ModelFolder, adapters: tuple[Adapter, ...], settings: EngineSettings, name: str) -> Path:
    """Where the evaluation of `name` lives: one place for each model, adapter, task and engine."""
    adapter = next((adapter.digest for adapter in adapters if adapter.name == name), None)
    identity = [
        model.weights_digest,
        model.template_digest,
        adapter,
        name,
        asdict(spec.eval),
        asdict(spec.data.rtl),
        engine_record(settings),
    ]
    return spec.storage.path / "evaluations" / digest_text(canonical_json(identity))[:16]


def _read(name: str, folder: Path) -> Evaluation:
    kept = read_json(folder / "run.json")
    return Evaluation(name, read_result(folder), kept["record"], kept["run_id"], skipped=True)


def _track(tracker: Tracker, run_id: str, result: EvalResult, record: Mapping[str, Any]) -> None:
    values = {f"eval/{split.split}/pass_at_{one.k}": one.value for split in result.splits for one in split.pass_at_k}
    tracker.metrics(run_id, {**values, "eval/completion_tokens": result.completion_tokens, "eval/seconds": result.seconds}, 0)
    tracker.artifact_json(run_id, "records/evaluation.json", dict(record))
    tracker.artifact_json(run_id, "result.json", result.to_json())
    tracker.artifact_file(run_id, Path(result.samples_path), "samples")
