"""The same spec trained on both backends through Ray Train: losses, adapters and the trained modules must be the same.

Model, data, mesh and hardware are the spec's; without a model on the command line it is tiny Llama and tiny Gemma 4. Low precision
drifts, each framework its own way: in bfloat16 the drift is reported and only the modules are judged.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from crossmesh.adapters.initial import initial_lora
from crossmesh.adapters.peft_format import read_adapter
from crossmesh.cluster.session import ray_session
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import ATTENTIONS, AUTO, BACKENDS, BackendSpec, ModelSpec
from crossmesh.console import Console
from crossmesh.errors import require
from crossmesh.models.architecture import Architecture
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.lora import lora_modules, targets_of
from crossmesh.models.weights.fetch import ModelFolder
from crossmesh.train.launch import TrainResult, check_trainable, train
from crossmesh.trial.trial import fetch
from crossmesh.verify.checks import PLACEHOLDER_MODEL
from crossmesh.verify.differences import (
    Arrays,
    distance,
    layer_kinds,
    loss_differences,
    module_difference,
    modules_by_kind,
    trained_modules,
)
from crossmesh.verify.result import CheckResult, Limit

LOSS_BOUND = 1e-3
ADAPTER_BOUND = 1e-2
MOVED_BOUND = 0.05
"""How far an adapter must have gone, relative to where it began: two runs that learn nothing are alike and prove nothing."""

_FURTHEST = ModelSpec("gemma4", "random://tiny_gemma4@0")
_DROPOUT = 0.05
"""The paper's; both backends drop the same."""


def verify_training_parity(spec: ExperimentSpec, folder: Path, console: Console) -> CheckResult:
    """Train `spec` on every backend from the same initial values and compare what came out.

    Raises `InputError` for full fine-tuning (there is no adapter to compare), and hardware that a backend does not train on.
    """
    require(not spec.lora.full, "lora.rank", spec.lora.rank, "a positive rank in this check: it compares adapters")
    require(not spec.lora.adapter, "lora.adapter", spec.lora.adapter, "nothing in this check: both backends start from the seed")
    for backend in BACKENDS:
        check_trainable(on_backend(spec, backend))
    limits: list[Limit] = []
    figures: dict[str, Any] = {"steps": spec.optim.steps, "packing": spec.packing.mode, "mesh": str(spec.mesh_shape)}
    with ray_session(spec.storage):
        for name, one in cases(spec).items():
            base = fetch(one)
            runs = {backend: _train(one, backend, base, folder / f"{name}-{backend}", console) for backend in BACKENDS}
            judged, measured = compare_backends(one, read_architecture(base.path), runs)
            limits += [replace(limit, name=f"{name}.{limit.name}") for limit in judged]
            figures[name] = measured
    return CheckResult("training_parity", tuple(limits), figures)


def on_backend(spec: ExperimentSpec, backend: str) -> ExperimentSpec:
    """The same experiment on another backend, with an attention kernel that it has."""
    attention = spec.backend.attention if spec.backend.attention in ATTENTIONS[backend] else AUTO
    return replace(spec, backend=BackendSpec(backend, spec.backend.remat, attention))


def compare_backends(spec: ExperimentSpec, architecture: Architecture, runs: dict[str, TrainResult]) -> tuple[list[Limit], dict[str, Any]]:
    """Limits and figures of one model, from its finished run on each backend."""
    adapters: dict[str, Arrays] = {backend: read_adapter(run.adapter_folder)[0] for backend, run in runs.items()}
    lora = lora_modules(spec.lora, architecture)
    initial = initial_lora(lora, spec.lora.seed)
    kinds = layer_kinds(targets_of(lora), [layer.attention for layer in architecture.layers])
    modules = {backend: trained_modules(adapter) for backend, adapter in adapters.items()}
    apart = module_difference(modules["jax"], modules["torch"], kinds)
    losses = {backend: [loss for _, loss in run.losses] for backend, run in runs.items()}
    differences = loss_differences(losses["jax"], losses["torch"])
    moved = distance(adapters["torch"], initial)
    limits = [Limit("different_modules", len(modules["jax"] ^ modules["torch"]), 0), Limit("moved", moved, MOVED_BOUND, at_least=True)]
    away = distance(adapters["jax"], adapters["torch"])
    if spec.model.dtype == "float32":
        limits += [Limit("loss_difference", max(differences), LOSS_BOUND), Limit("adapter_difference", away, ADAPTER_BOUND)]
    figures = {
        "dtype": spec.model.dtype,
        "dropout": spec.lora.dropout,
        "loss_difference": differences,
        "worst_step": 1 + differences.index(max(differences)),
        "adapter_difference": away,
        "adapter_difference_of_change": distance(adapters["jax"], adapters["torch"], initial),
        "losses": losses,
        "modules": {backend: modules_by_kind(names, kinds) for backend, names in modules.items()},
        "module_difference": apart,
        "tokens_per_s": {backend: run.tokens_per_s for backend, run in runs.items()},
    }
    return limits, figures


def cases(spec: ExperimentSpec) -> dict[str, ExperimentSpec]:
    """The spec itself; without a model of its own the family that is furthest from the default as well, with dropout."""
    if spec.model != PLACEHOLDER_MODEL:
        return {spec.model.family: spec}
    dropout = spec.lora.dropout or _DROPOUT
    return {"llama": spec, "gemma4": replace(spec, model=_FURTHEST, lora=replace(spec.lora, dropout=dropout))}


def _train(spec: ExperimentSpec, backend: str, model: ModelFolder, folder: Path, console: Console) -> TrainResult:
    with console.stage(f"train: {spec.model.weights} on {backend}") as stage:
        return train(on_backend(spec, backend), model, folder, stage.hear)
