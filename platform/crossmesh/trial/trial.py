"""One trial: a spec's fine-tuning from base weights to a PEFT adapter, tracked, resumable, done at most once.

`prepare` says what the trial is (its records and identity) without a framework; `run_trial` does it, or finds it done. Where it runs
and how it steps is `train/`.
"""

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from crossmesh.adapters.init_adapter import InitAdapter, adapted_modules, find_init_adapter
from crossmesh.adapters.peft_config import AdapterConfig
from crossmesh.cluster.calls import call_worker
from crossmesh.cluster.session import ray_session, users_cluster
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.fingerprint import (
    TRAINED_RECORD,
    Record,
    ScienceFacts,
    digest_of,
    order_digest,
    science_record,
    settings_digest,
    system_record,
    trained_record,
    trial_identity,
)
from crossmesh.data.chat import ChatTokenizer
from crossmesh.data.lengths import LengthStatistics
from crossmesh.data.packing import plan_steps
from crossmesh.data.served import check_dropped, check_vocabulary, notes, unserved_stops
from crossmesh.data.sources import Dataset, Dropped, load_rows
from crossmesh.data.template_date import fixed_date
from crossmesh.errors import BudgetReachedError, CrossmeshError, InputError
from crossmesh.files import read_json, write_json
from crossmesh.hardware.devices import Tpu
from crossmesh.metrics import added_metrics
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.lora import LoraModule, largest_rank
from crossmesh.models.placement import Placement, place
from crossmesh.models.weights.fetch import ConversionNeededError, ModelFolder, fetch_model
from crossmesh.objectives.objective import objective_record
from crossmesh.plan.gate import gate_point
from crossmesh.plan.planner import own_planner
from crossmesh.plan.point import training_point
from crossmesh.plan.record import plan_metrics, plan_sources, training_record
from crossmesh.plan.training.forecast import Forecast
from crossmesh.track.provenance import gather_provenance
from crossmesh.track.tracked_run import (
    TAG_ADAPTER,
    TAG_BACKEND,
    TAG_BASE,
    TAG_CONTINUES,
    TAG_DATA,
    TAG_SCIENCE,
    TAG_SYSTEM,
    TAG_TRAINED,
    registered_name,
)
from crossmesh.track.tracker import RunSettings, Tracker
from crossmesh.train.events import OnEvent, StageEvent, WarningEvent
from crossmesh.train.launch import TrainResult, train
from crossmesh.train.train_job import ResumeCheckpoint, TrainJob
from crossmesh.trial.hooks import Hooks, StartedTrial, make_hooks
from crossmesh.trial.lease import LeaseLostError, leased
from crossmesh.trial.resume_checkpoint import check_resume_checkpoint, find_resume_checkpoint
from crossmesh.trial.trial_log import TrialLog, params_of, totals_of

_RUN_FILE = "run.json"
_PROVENANCE_FILE = "provenance.json"
_PROVENANCE_ARTIFACT = "records/provenance.json"


class StoppedEarlyError(CrossmeshError):
    """For `check` to raise: the trial is not worth going on with."""


@dataclass(frozen=True)
class Prepared:
    """What a trial is, before anything is computed."""

    model: ModelFolder
    science: Record
    system: Record
    lengths: LengthStatistics
    dropped: tuple[Dropped, ...]
    """Rows that are not trained on, by reason."""
    notes: tuple[str, ...]
    """What the person should know of the rows."""
    template_date: str
    """What the chat template is told when it asks for the date; empty: it does not."""
    placement: Placement
    """What the mesh holds more than once."""
    init_adapter: InitAdapter | None = None
    """The adapter that training continues from."""
    resume: ResumeCheckpoint | None = None
    """The state that training begins with."""
    planned: Forecast | None = None
    """With the rows that it has; None on a CPU."""

    @property
    def dropped_by_reason(self) -> dict[str, int]:
        """Rows that are not trained on."""
        return {one.reason: one.count for one in self.dropped}

    @property
    def order(self) -> str:
        """Digest of the rows of every step."""
        return order_digest(self.science.contents)

    @property
    def identity(self) -> str:
        """SHA-256 over science and system."""
        return trial_identity(self.science, self.system)


@dataclass(frozen=True)
class Trial:
    """A finished trial."""

    prepared: Prepared
    folder: Path
    run_id: str
    """Id of the run."""
    provenance: dict[str, Any]
    """Of the process that trained it."""
    result: TrainResult
    skipped: bool
    """Whether it was found done."""


def cache_folder(spec: ExperimentSpec) -> Path:
    """Models, data and compiled programs that any trial may use again."""
    return spec.storage.path / "cache"


def fetch(spec: ExperimentSpec) -> ModelFolder:
    """Make the base model a local folder: here where Ray is this machine's, without Ray; on a cluster, or with torch, in a worker."""
    device, cache = spec.hardware.slice.device, cache_folder(spec)
    if users_cluster() is None:
        with suppress(ConversionNeededError):
            return fetch_model(spec.model, cache, convert=False)
    with ray_session(spec.storage):
        kind = "train/jax" if isinstance(device, Tpu) else "train/torch"  # TPU hosts have no torch.
        return call_worker(kind, device, fetch_model, spec.model, cache)


def read_data(spec: ExperimentSpec, model: ModelFolder) -> Dataset:
    """Tokenize the training rows with the model's own tokenizer and template."""
    return load_rows(spec.data, own_tokenizer(spec, model), cache_folder(spec))


def own_tokenizer(spec: ExperimentSpec, model: ModelFolder) -> ChatTokenizer:
    """Return the model's tokenizer, with the date that was fixed for these rows."""
    return ChatTokenizer(model.path, fixed_date(spec.data, model.template_digest, spec.storage.path / "template_dates"))


def prepare(spec: ExperimentSpec, model: ModelFolder, tracker: Tracker) -> Prepared:
    """Work out the records of the trial that `spec` describes; `tracker` has the runs that `lora.adapter` and others may name.

    Raises `InputError` for data, targets or something to continue from that cannot be, `RejectedError` for a plan that does not work.
    """
    added_metrics()  # One that is declared wrongly is refused before anything is trained.
    resume = find_resume_checkpoint(spec, tracker)
    architecture = read_architecture(model.path)
    init_adapter = find_init_adapter(spec.lora, model, architecture, spec.storage, lambda: tracker)
    modules = adapted_modules(spec.lora, init_adapter.folder if init_adapter else None, architecture)
    if spec.serve.max_lora_rank < largest_rank(modules):
        raise InputError(
            f"serve.max_lora_rank={spec.serve.max_lora_rank} is below the rank {largest_rank(modules)} of lora.adapter="
            f"{spec.lora.adapter!r}. Raise it to that at least."
        )
    tokenizer = own_tokenizer(spec, model)
    data = load_rows(spec.data, tokenizer, cache_folder(spec))
    check_dropped(data, spec.data)
    check_vocabulary(data, model.path, tokenizer, architecture.vocab)
    lengths = [len(row.tokens) for row in data.rows]
    planner = own_planner(spec, tracker if spec.hardware.slice.chip else None)
    planned = gate_point(spec, training_point(spec, architecture, modules, lengths), planner)
    placement = place(architecture, spec.mesh_shape, spec.backend_name, spec.model, modules)
    plans = plan_steps(lengths, spec)
    facts = ScienceFacts(
        weights_digest=model.weights_digest,
        data_digest=data.digest,
        lora=_lora_record(modules, init_adapter) if modules else {},
        step_rows=tuple(tuple(data.rows[index].id for index in plan.rows) for plan in plans),
        objective=objective_record(spec.objective),
    )
    science, system = science_record(spec, facts), system_record(spec, files_of(model))
    if resume:
        check_resume_checkpoint(resume, science, spec, tracker)
        resume = replace(resume, alike=settings_digest(science.contents) == resume.settings)
        science = science_record(spec, replace(facts, resumed_from=resume.sets_apart))
    said = notes(data, tokenizer, tokenizer.template_date, unserved_stops(data, model.path, tokenizer))
    date = tokenizer.template_date if tokenizer.template.uses_date else ""
    return Prepared(model, science, system, data.lengths, data.dropped, said, date, placement, init_adapter, resume, planned)


def files_of(model: ModelFolder) -> dict[str, str]:
    """Digests of the files that say how a model is asked."""
    return {"chat_template": model.template_digest, "tokenizer": model.tokenizer_digest}


def _lora_record(modules: tuple[LoraModule, ...], init_adapter: InitAdapter | None) -> dict[str, Any]:
    """What LoRA is on which modules, and the adapter that training continues from."""
    config = AdapterConfig.of(modules, 0.0, "")
    return {
        "modules": list(config.modules),
        "rank": config.rank,
        "alpha": config.alpha,
        "rank_stabilised": config.rslora,
        "other_ranks": dict(config.ranks),
        "other_alphas": dict(config.alphas),
        "adapter": init_adapter.digest if init_adapter else "",
    }


def run_trial(
    spec: ExperimentSpec,
    prepared: Prepared,
    tracker: Tracker,
    on_event: OnEvent,
    *,
    parent: str | None = None,
    force: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Trial:
    """Train, or return the trial that is already FINISHED; an interrupted one continues under its own run.

    One job at a time has a trial (`lease.py`); another one waits and then finds it done. A trial whose run is no longer there gets a new
    run.

    Args:
        spec: the experiment; its backend is the trial's.
        prepared: `prepare`'s answer for this spec.
        tracker: where the run is tracked.
        on_event: hears of stages and steps.
        parent: run that the trial's run belongs under; one that was made for another run is shown under both.
        force: forget what was done and train again, as a new run.
        check: called several times a second while waiting and training; what it raises stops that, with a checkpoint.
    """
    # Workers are told the date; their own clocks and time zones have no say.
    spec = replace(spec, data=replace(spec.data, template_date=prepared.template_date))
    folder = spec.storage.path / "trials" / prepared.identity[:16]
    waiting = StageEvent("another job has this trial: waiting for it (Ctrl-C stops waiting)")
    with leased(folder.with_name(f"{folder.name}.lease"), lambda: on_event(waiting), check) as lease:

        def still() -> None:
            lease.check()
            check()

        if force:
            _forget(spec, prepared, folder)
        finished = tracker.find(prepared.identity)
        if finished and (folder / _RUN_FILE).is_file():
            # With its result on disk it returns at once.
            result = train(spec, prepared.model, folder, on_event, prepared.init_adapter, still, prepared.resume, prepared.order)
            if parent:
                tracker.adopt(finished.run_id, parent)
            return _trial(prepared, folder, tracker, finished.run_id, result, skipped=True)
        return _run(spec, prepared, tracker, folder, on_event, parent, still)


def _forget(spec: ExperimentSpec, prepared: Prepared, folder: Path) -> None:
    """Remove what was trained, checkpoints elsewhere included."""
    shutil.rmtree(folder, ignore_errors=True)
    if spec.checkpoint.target:
        TrainJob(spec, prepared.model, folder, folder).checkpoints("").clear()


def _run(
    spec: ExperimentSpec,
    prepared: Prepared,
    tracker: Tracker,
    folder: Path,
    on_event: OnEvent,
    parent: str | None,
    check: Callable[[], None],
) -> Trial:
    """Train, tracked, under a new run or that of an interrupted attempt."""
    if warning := prepared.placement.message:
        on_event(WarningEvent(warning))
    for note in prepared.notes:
        on_event(WarningEvent(note))
    followers = make_hooks(spec)
    run_id = _open_run(spec, prepared, tracker, folder, parent)
    status = "FAILED"
    log, done = TrialLog(tracker, run_id, spec.mesh.dcn), None
    hooks = Hooks({"tracking": log, **followers})
    try:
        hooks.start(StartedTrial(spec, run_id, folder))
        result = train(spec, prepared.model, folder, hooks.before(on_event), prepared.init_adapter, check, prepared.resume, prepared.order)
        if result.data_digest != prepared.science.contents["data"]["digest"]:
            raise CrossmeshError(
                f"The data changed while {spec.name!r} was training: {spec.data.source} is not what the trial's records say. "
                "Leave it alone and run again with force=true."
            )
        for event in result.history:  # What the run has already is not logged again; one whose run was lost has nothing.
            log.on_step(event)
        own = trained_record(prepared.science, prepared.system, result.adapter_digest)
        write_json(result.adapter_folder / TRAINED_RECORD, own)
        tracker.tags(run_id, {TAG_TRAINED: digest_of(own)})
        tracker.artifact_folder(run_id, result.adapter_folder, result.adapter_folder.name)
        tracker.metrics(run_id, totals_of(spec, result, None if spec.hardware.emulated else prepared.planned), spec.optim.last_step)
        if not spec.lora.full:
            _register(spec, prepared, tracker, run_id, result)
        status, done = "FINISHED", result
    except (KeyboardInterrupt, BudgetReachedError, StoppedEarlyError):  # It can go on later.
        status = "KILLED"
        raise
    except LeaseLostError:
        status = ""
        raise
    finally:
        try:
            hooks.end(done)
        finally:
            if status:
                tracker.finish(run_id, status)
            else:
                tracker.leave(run_id)
    return _trial(prepared, folder, tracker, run_id, result, skipped=False)


def _open_run(spec: ExperimentSpec, prepared: Prepared, tracker: Tracker, folder: Path, parent: str | None) -> str:
    """Return the trial's own run, started now or at an earlier attempt."""
    if kept := tracker.resume_kept(folder / _RUN_FILE):
        if parent:
            tracker.adopt(kept, parent)
        return kept
    run_id = tracker.start(
        spec.backend_name,
        "train",
        parent=parent,
        identity=prepared.identity,
        tags={TAG_BACKEND: spec.backend_name},
        params=RunSettings(params_of(spec), emulated=spec.hardware.emulated),
    )
    tracker.records(run_id, prepared.science.contents, prepared.system.contents)
    tracker.artifact_json(run_id, "records/spec.json", asdict(spec))
    tokens = prepared.lengths
    tracker.dataset(
        run_id,
        name=Path(spec.data.source).name,
        digest=prepared.science.contents["data"]["digest"],
        source=spec.data.source,
        context="training",
        profile={"rows": tokens.count, "tokens_mean": tokens.mean, "tokens_longest": tokens.longest, "dropped": prepared.dropped_by_reason},
    )
    tracker.metrics(run_id, {"data/dropped_rows": sum(one.count for one in prepared.dropped)}, 0)
    tracker.artifact_json(run_id, "records/rows.json", {"dropped": [asdict(one) for one in prepared.dropped], "notes": prepared.notes})
    if prepared.planned and not spec.hardware.emulated:  # Beside what is measured.
        record = training_record(spec.name, prepared.planned)
        tracker.metrics(run_id, plan_metrics(record), 0)
        tracker.tags(run_id, plan_sources(record))
    if trained_by := _kept_provenance(folder):  # The trial's run was lost: what was trained before keeps saying by what.
        tracker.artifact_json(run_id, _PROVENANCE_ARTIFACT, trained_by)
    else:
        provenance = gather_provenance().of_training(files_of(prepared.model), _named(spec, prepared))
        tracker.provenance(run_id, provenance)
        write_json(folder / _PROVENANCE_FILE, provenance.record())
    write_json(folder / _RUN_FILE, {"run_id": run_id})
    return run_id


def _named(spec: ExperimentSpec, prepared: Prepared) -> dict[str, Any]:
    """Settings whose part in what is learnt the rows of the steps say already, and the run that it went on from."""
    begun = {"resumed_from": prepared.resume.science} if prepared.resume else {}
    window = {"packing.window": spec.packing.window} if spec.packing.mode == "stream" else {}
    return {"data.max_length": spec.data.max_length, "data.seed": spec.data.seed, **window, **begun}


def _kept_provenance(folder: Path) -> dict[str, Any] | None:
    """What trained the trial, as its folder says; None when that is not there or damaged."""
    try:
        return {**read_json(folder / _PROVENANCE_FILE)}
    except (OSError, ValueError, TypeError):
        return None


def _register(spec: ExperimentSpec, prepared: Prepared, tracker: Tracker, run_id: str, result: TrainResult) -> None:
    """Make the adapter a version of a registered model, with what it was made of: who serves or evaluates it finds the way back."""
    lineage = {
        TAG_ADAPTER: result.adapter_digest,
        TAG_BASE: prepared.model.weights_digest,
        TAG_DATA: result.data_digest,
        **({TAG_CONTINUES: prepared.init_adapter.digest} if prepared.init_adapter else {}),
    }
    tracker.tags(run_id, lineage)
    fingerprints = {TAG_SCIENCE: prepared.science.digest, TAG_SYSTEM: prepared.system.digest}
    tracker.register(run_id, result.adapter_folder.name, registered_name(spec.model.weights), {**lineage, **fingerprints})


def _trial(prepared: Prepared, folder: Path, tracker: Tracker, run_id: str, result: TrainResult, *, skipped: bool) -> Trial:
    provenance = _kept_provenance(folder)
    if provenance is None:
        provenance = {**tracker.read_json(run_id, _PROVENANCE_ARTIFACT)}
        write_json(folder / _PROVENANCE_FILE, provenance)
    return Trial(prepared, folder, run_id, provenance, result, skipped)
