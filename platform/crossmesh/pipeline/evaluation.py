"""Evaluating models behind one server: the base and any adapters, each once, under a record of how it was examined.

Which adapters there are and what the results mean is the caller's.
"""

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crossmesh.adapters.peft_format import check_fits, read_adapter, write_serving_adapter
from crossmesh.console import Console
from crossmesh.errors import CrossmeshError
from crossmesh.evaluate.harness import EvalResult, evaluate_endpoint, read_result
from crossmesh.files import canonical_json, digest_text, read_json, write_json
from crossmesh.models.families import read_architecture
from crossmesh.models.weights import ModelFolder
from crossmesh.serve.app import start_server
from crossmesh.serve.engine import EngineSettings, engine_settings
from crossmesh.serve.record import engine_record
from crossmesh.spec.experiment import ExperimentSpec
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


def serving_adapters(model: ModelFolder, adapters: tuple[Adapter, ...], storage: Path) -> dict[str, Path]:
    """Return each adapter in the form that the engine serves correctly, made once, by name."""
    architecture = read_architecture(model.path)
    served = {}
    for adapter in adapters:
        folder = storage / "serving" / adapter.digest[:16]
        check_fits(read_adapter(adapter.folder)[0], architecture, f"The adapter {adapter.name!r} in {adapter.folder}")
        if not _readable(folder):
            shutil.rmtree(folder, ignore_errors=True)
            write_serving_adapter(adapter.folder, folder, architecture)
        served[adapter.name] = folder
    return served


def _readable(folder: Path) -> bool:
    """Whether `folder` holds a whole adapter; one that was damaged is made again."""
    try:
        read_adapter(folder)
    except CrossmeshError:
        return False
    return True


def evaluate_models(
    spec: ExperimentSpec, model: ModelFolder, adapters: tuple[Adapter, ...], tracker: Tracker, console: Console, parent: str, *, force: bool
) -> dict[str, Evaluation]:
    """Evaluate the base and every adapter through one server; it is started only when something is not done yet."""
    served = serving_adapters(model, adapters, spec.storage.path)
    settings = engine_settings(spec, model.path, served, BASE)
    folders = {name: _folder(spec, model, adapters, settings, name) for name in settings.models}
    done = {} if force else {name: folder for name, folder in folders.items() if (folder / "run.json").is_file()}
    evaluations = {name: _read(name, folder) for name, folder in done.items()}
    missing = [name for name in settings.models if name not in done]
    if not missing:
        return evaluations
    with console.stage("serve: base" + "".join(f", {name}" for name in served)) as stage:
        server = start_server(spec, model.path, served, base_name=BASE, on_progress=stage.say)
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
