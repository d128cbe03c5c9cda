"""What short trainings of a tiny model say of themselves, and learn, after one change: real trials, compared as by `crossmesh compare`."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import TrackingSpec
from crossmesh.config.training import BackendSpec, BatchSpec, DataSpec, LoraSpec, ModelSpec, OptimSpec
from crossmesh.console import Console
from crossmesh.errors import InputError
from crossmesh.models.weights.fetch import ModelFolder
from crossmesh.report.gate.comparable import compare_variants
from crossmesh.report.stored import stored_variants
from crossmesh.track.tracker import Tracker
from crossmesh.train.launch import check_trainable
from crossmesh.trial.trial import Prepared, fetch, prepare, run_trial
from crossmesh.verify.checks import PLACEHOLDER_MODEL
from crossmesh.verify.differences import loss_differences
from crossmesh.verify.unlike.case import NOWHERE, Case, scopes

STEPS = 4
LOSS_BOUND = 1e-5
"""How far apart losses of one science may be at any step, relative to the loss (as in `training_parity`)."""
_ROWS, _LENGTH, _DROPOUT, _RATE = 32, 96, 0.3, 1e-3

Change = Callable[[ExperimentSpec], ExperimentSpec]


@dataclass(frozen=True)
class FinishedTraining:
    """A finished trial of the check."""

    prepared: Prepared
    run_id: str
    losses: tuple[float, ...]


def tiny_spec(spec: ExperimentSpec, folder: Path) -> ExperimentSpec:
    """The training that is changed: tiny Llama with much dropout on rows of its own, in a storage of its own."""
    rows = folder / "rows.jsonl"
    rows.parent.mkdir(parents=True, exist_ok=True)
    asked = ({"prompt": f"{number} and {7 * number % 11}?", "response": f"{number + 7 * number % 11}"} for number in range(_ROWS))
    rows.write_text("".join(json.dumps(row) + "\n" for row in asked), encoding="utf-8")
    return ExperimentSpec(
        name="unlike",
        model=PLACEHOLDER_MODEL,
        data=DataSpec(source=str(rows), max_length=_LENGTH),
        lora=LoraSpec(rank=4, dropout=_DROPOUT),
        optim=OptimSpec(steps=STEPS, learning_rate=_RATE),
        batch=BatchSpec(size=8),
        backend=BackendSpec("torch"),
        storage=replace(spec.storage, root=str(folder / "storage")),
        tracking=replace(spec.tracking, uri="", system_metrics=False, trackers=TrackingSpec().trackers),
    )


class Trainings:
    """Trains in one Ray session and compares what the runs in the store say."""

    def __init__(self, spec: ExperimentSpec, tracker: Tracker, console: Console) -> None:
        self.spec, self.tracker, self._console = spec, tracker, console
        self._models: dict[ModelSpec, ModelFolder] = {}

    def train(self, changed: str, spec: ExperimentSpec) -> FinishedTraining:
        """Train as a job does."""
        with self._console.stage(f"train: {changed}") as stage:
            trial = run_trial(spec, self.prepared(spec), self.tracker, stage.hear)
        return FinishedTraining(trial.prepared, trial.run_id, tuple(loss for _, loss in trial.result.losses))

    def prepared(self, spec: ExperimentSpec) -> Prepared:
        """What the trial of `spec` says it is."""
        if spec.model not in self._models:
            self._models[spec.model] = fetch(spec)
        return prepare(spec, self._models[spec.model], self.tracker)

    def alike(self, changed: str, must: str, one: FinishedTraining, other: FinishedTraining) -> Case:
        """The row of two trainings; those of one science must have learned the same, those of two must not."""
        runs = [self.tracker.run(each.run_id) for each in (one, other)]
        shown = {each.scope for each in compare_variants(stored_variants(self.tracker, runs)).differences}
        apart = max(loss_differences(one.losses, other.losses))
        nats = max(abs(first - second) for first, second in zip(one.losses, other.losses, strict=True))
        wrong = ""
        if "science" not in must and apart > LOSS_BOUND:
            wrong = f"one science, and losses {apart:.2g} apart"
        elif "science" in must and apart <= LOSS_BOUND:
            wrong = f"the change changed nothing: losses {apart:.2g} apart"
        return Case(changed, must, scopes(shown), {"loss_difference": apart, "loss_difference_nats": nats}, wrong)

    def said(self, changed: str, must: str, other: ExperimentSpec) -> Case:
        """The row of a change that needs no training: what both trials say they are."""
        own, another = self.prepared(replace(self.spec, backend=other.backend)), self.prepared(other)
        shown = {scope for scope in ("science", "system") if getattr(own, scope).digest != getattr(another, scope).digest}
        return Case(changed, must, scopes(shown))


def trained_cases(trainings: Trainings, folder: Path) -> tuple[list[Case], list[str]]:
    """Rows of all trainings, and the ids of two runs of one science for whoever needs such."""
    spec = trainings.spec
    own = trainings.train("torch", spec)
    jax = trainings.train("jax", replace(spec, backend=BackendSpec("jax")))
    split = trainings.train("torch, micro-batch 2", replace(spec, batch=replace(spec.batch, micro=2)))
    faster = trainings.train("torch, another rate", replace(spec, optim=replace(spec.optim, learning_rate=2 * _RATE)))
    without = trainings.train("torch, no dropout", replace(spec, lora=replace(spec.lora, dropout=0.0)))
    dropout = f"lora.dropout={_DROPOUT:g}"
    cases = [
        trainings.alike(f"{dropout}, backend.name torch -> jax", "system", own, jax),
        trainings.alike(f"{dropout}, batch.micro 8 -> 2", "system", own, split),
        trainings.alike(f"optim.learning_rate {_RATE:g} -> {2 * _RATE:g}", "science", own, faster),
        trainings.alike(f"lora.dropout {_DROPOUT:g} -> 0", "science", own, without),
        _nf4(trainings),
        *(trainings.said(changed, must, other) for changed, must, other in _said(trainings, folder)),
    ]
    return cases, [own.run_id, jax.run_id]


def _nf4(trainings: Trainings) -> Case:
    """Both backends on a base in 4 bits; torch needs bitsandbytes for it."""
    changed = "model.quantization=nf4, backend.name torch -> jax"
    spec = replace(trainings.spec, model=replace(trainings.spec.model, quantization="nf4"))
    try:
        check_trainable(spec)
    except InputError as error:
        return Case(changed, "system", "not tried", skipped=str(error))
    runs = [trainings.train(f"nf4 on {backend}", replace(spec, backend=BackendSpec(backend))) for backend in ("torch", "jax")]
    return trainings.alike(changed, "system", runs[0], runs[1])


def _said(trainings: Trainings, folder: Path) -> list[tuple[str, str, ExperimentSpec]]:
    spec = trainings.spec
    source = trainings.prepared(spec).model.path
    quantized = replace(spec, model=replace(spec.model, quantization="nf4"), backend=BackendSpec("jax"))
    return [
        ("model.quantization none -> nf4", "science", quantized),
        ("data.max_length, no row that long", "system", replace(spec, data=replace(spec.data, max_length=_LENGTH + 32))),
        ("tokenizer.json re-indented", NOWHERE, copied(spec, source, folder / "indented", "tokenizer.json", _indented)),
        ("a comment in the chat template", NOWHERE, copied(spec, source, folder / "comment", "chat_template.jinja", _commented)),
        ("another word in the chat template", "science", copied(spec, source, folder / "word", "chat_template.jinja", _worded)),
    ]


def copied(spec: ExperimentSpec, source: Path, folder: Path, name: str, change: Callable[[str], str]) -> ExperimentSpec:
    """`spec` on a copy of the model in `source` whose file `name` is changed."""
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("crossmesh.json"))
    file = folder / name
    text = file.read_text(encoding="utf-8")
    changed = change(text)
    if changed == text:
        raise ValueError(f"{name} is as it was")
    file.write_text(changed, encoding="utf-8")
    return replace(spec, model=replace(spec.model, weights=str(folder)))


def _indented(text: str) -> str:
    value: Any = json.loads(text)
    return json.dumps(value, indent=7, sort_keys=True)


def _commented(text: str) -> str:
    return "{#- Says nothing. -#}" + text


def _worded(text: str) -> str:
    return "Read this. " + text
