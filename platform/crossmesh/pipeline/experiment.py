"""An experiment from end to end: one spec trained on each backend, served together, evaluated, compared.

Every stage is found done when it is; interrupted at any point, the next call continues. Stages are Ray work on a session that the
caller opened (`cluster.ray_session`).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from crossmesh.cluster.session import require_chips
from crossmesh.config.command_line import where_given
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.console import Console
from crossmesh.errors import InputError
from crossmesh.files import canonical_json, digest_text, write_json
from crossmesh.installation import job_command
from crossmesh.pipeline.evaluation import BASE, Adapter, Evaluation, check_evaluation, evaluate_models
from crossmesh.plan.gate import announced, gate_serving, gate_training
from crossmesh.plan.planner import own_planner
from crossmesh.report.pages.write import Report, make_report
from crossmesh.report.prices import rent
from crossmesh.report.stored import repeats_of
from crossmesh.report.trained_run import mean_power, planned_before, training_summary
from crossmesh.report.variants import EMULATED_RENT, Results, RunRecord, Variant, answers_of, scores_of
from crossmesh.sweep.repeat import Repeats
from crossmesh.track.provenance import gather_provenance
from crossmesh.track.repeats import repeats_by_run, tracked_load_reasons
from crossmesh.track.tracker import RunSettings, Tracker
from crossmesh.train.launch import check_trainable
from crossmesh.trial.trial import Trial, fetch, prepare, run_trial


@dataclass(frozen=True)
class FinishedExperiment:
    """What a finished experiment left."""

    report: Report
    page: Path
    """The HTML; `report.json` and `report.md` lie beside it."""


def check_experiment(spec: ExperimentSpec, backends: tuple[str, ...], tracker: Tracker, console: Console) -> None:
    """Refuse what cannot work before anything is started.

    Raises `InputError` for a spec that trains all weights or that a backend cannot train, `RejectedError` for a run or an engine whose
    plan does not work.
    """
    if spec.lora.full:
        raise InputError(
            "lora.rank=0 trains all weights, and this job serves and compares adapters of one base. Give lora.rank a positive number, or "
            f"train the model with {job_command('finetune')}."
        )
    check_evaluation(spec)
    planner = own_planner(spec, tracker)
    for backend, own in _on_each(spec, backends).items():
        check_trainable(own)
        if planned := gate_training(own, planner):
            console.say(f"{backend}: {announced(own, planned)}")
    gate_serving(spec, planner)


def _on_each(spec: ExperimentSpec, backends: tuple[str, ...]) -> dict[str, ExperimentSpec]:
    return {backend: replace(spec, backend=replace(spec.backend, name=backend)) for backend in backends}


def run_experiment(
    spec: ExperimentSpec,
    backends: tuple[str, ...],
    tracker: Tracker,
    console: Console,
    output: Path,
    command: str,
    repeats: Repeats | None = None,
    *,
    force: bool = False,
) -> FinishedExperiment:
    """Train `spec` on every backend, evaluate them beside the base, and write the report into `output`.

    Args:
        spec: the experiment; its own backend choice is replaced by each of `backends`.
        backends: `torch`, `jax`, in the order they are shown.
        tracker: where runs are tracked; there is one parent run for the experiment and one child for each stage.
        console: shows stages and progress.
        output: folder of the report.
        command: what to type to get the results again, shown in the report.
        repeats: of the first steps of each training; None: none but those that there are.
        force: do every stage again.

    `check_experiment` has let it pass. Raises `InputError` when hardware cannot be had.
    """
    specs = _on_each(spec, backends)
    require_chips(spec.hardware.slice.device, max(spec.training_chips, spec.serving_chips))
    with console.stage(f"model: {spec.model.weights}") as stage:
        model = fetch(spec)
        stage.say(f"{model.path}")
    with console.stage(f"data: {spec.data.source}") as stage:
        prepared = {backend: prepare(own, model, tracker) for backend, own in specs.items()}
        lengths = next(iter(prepared.values())).lengths
        stage.say(f"{lengths.count} rows, {lengths.mean:.0f} tokens in the mean, {lengths.longest} at most")
    identity = digest_text(canonical_json([*[one.identity for one in prepared.values()], asdict(spec.eval), asdict(spec.serve)]))
    parent = _parent_run(spec, tracker, identity)
    status = "FAILED"
    try:
        trials = {}
        for backend, own in specs.items():
            with console.stage(f"train: {backend}") as stage:
                trials[backend] = run_trial(own, prepared[backend], tracker, stage.hear, parent=parent, force=force)
                stage.say("already done" if trials[backend].skipped else f"final loss {trials[backend].result.final_loss:.4f}")
        if repeats:
            repeats.add(tracker, spec, [trial.run_id for trial in trials.values()], console.say)
        adapters = tuple(Adapter(backend, trial.result.adapter_folder, trial.result.adapter_digest) for backend, trial in trials.items())
        evaluations = evaluate_models(spec, model, adapters, tracker, console, parent, force=force)
        known = repeats_by_run(tracker)
        found = _variants(spec, trials, evaluations, tracker)
        variants = tuple(replace(one, repeats=repeats_of(known.get(str(one.run_id), ()))) for one in found)
        report = make_report(Results(spec.name, variants, command, tracker.ui_command, matters=spec.matters, where=where_given()))
        page = report.write(output)
        for suffix in (".html", ".json", ".md"):
            tracker.artifact_file(parent, page.with_suffix(suffix), "report")
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        tracker.finish(parent, status)
    return FinishedExperiment(report, page)


def _parent_run(spec: ExperimentSpec, tracker: Tracker, identity: str) -> str:
    """The experiment's own run, started now or by an earlier call."""
    file = spec.storage.path / "experiments" / f"{identity[:16]}.json"
    if kept := tracker.resume_kept(file):
        return kept
    run_id = tracker.start(spec.name, "experiment", identity=identity, params=RunSettings(spec, emulated=spec.hardware.emulated))
    tracker.provenance(run_id, gather_provenance())
    tracker.artifact_json(run_id, "records/spec.json", asdict(spec))
    write_json(file, {"run_id": run_id})
    return run_id


def _variants(
    spec: ExperimentSpec, trials: Mapping[str, Trial], evaluations: Mapping[str, Evaluation], tracker: Tracker
) -> tuple[Variant, ...]:
    base = evaluations[BASE]
    examined = RunRecord(BASE, evaluation=base.record)
    found = [Variant(BASE, None, examined, scores_of(base.result), run_id=base.run_id, answers=answers_of(base.result))]
    price = rent(spec.hardware.name, spec.plan.price, spec.plan.region, spec.hardware.catalogue, spec.mesh.dcn)
    price = EMULATED_RENT if spec.hardware.emulated else price
    runs = {backend: tracker.run(trial.run_id) for backend, trial in trials.items()}
    watts = mean_power(tracker, list(runs.values()))
    for backend, trial in trials.items():
        own, result, run = evaluations[backend], trial.result, runs[backend]
        record = RunRecord(backend, trial.prepared.science.contents, trial.prepared.system.contents, trial.provenance, own.record)
        size = (result.adapter_folder / "adapter_model.safetensors").stat().st_size
        found.append(
            Variant(
                name=backend,
                backend=backend,
                record=record,
                scores=scores_of(own.result),
                training=training_summary(run, result.losses, watts.get(run.run_id)),
                adapter_bytes=size,
                run_id=trial.run_id,
                rent=price,
                planned=planned_before(run),
                answers=answers_of(own.result),
                load=tracked_load_reasons(run.metrics),
                marked_emulated=run.emulated,
            )
        )
    return tuple(found)
