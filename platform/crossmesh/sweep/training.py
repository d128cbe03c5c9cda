"""A trial as what a sweep runs: the same gate, the same preparation and the same `run_trial` as one alone."""

from threading import Lock
from typing import Any

from crossmesh.cluster.session import require_chips
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import ModelSpec
from crossmesh.hardware.devices import Cpu, Gpu, Tpu
from crossmesh.models.weights.fetch import ModelFolder
from crossmesh.plan.gate import gate_training
from crossmesh.plan.planner import Planner
from crossmesh.sweep.policy import Need
from crossmesh.sweep.work import Hooks, Ran, usd_per_hour
from crossmesh.track.tracker import Tracker
from crossmesh.train.events import StageEvent
from crossmesh.train.launch import check_trainable
from crossmesh.trial.trial import Trial, fetch, prepare, run_trial


class Training:
    """Fine-tunes at each point."""

    live = True

    def __init__(self) -> None:
        self._models: dict[ModelSpec, ModelFolder] = {}
        self._fetching = Lock()

    def gate(self, spec: ExperimentSpec, planner: Planner) -> None:
        """As `Workload`. What only the model's files and the data's rows tell is judged again when the trial starts."""
        check_trainable(spec)
        gate_training(spec, planner)

    def need(self, spec: ExperimentSpec) -> Need:
        """As `Workload`. Workers on a CPU share one."""
        device = spec.hardware.slice.device
        match device:
            case Cpu():
                return Need("CPU", 1)
            case Gpu():
                return Need(device.node_resource, device.count * spec.mesh.dcn)
            case Tpu():
                return Need(device.head_resource, spec.mesh.dcn)

    def usd_per_hour(self, spec: ExperimentSpec) -> float | None:
        """As `Workload`."""
        return usd_per_hour(spec, spec.mesh.dcn)

    def run(self, spec: ExperimentSpec, tracker: Tracker, hooks: Hooks) -> Ran:
        """As `Workload`."""
        require_chips(spec.hardware.slice.device, spec.training_chips)
        hooks.on_event(StageEvent("model and data"))
        with self._fetching:
            model = self._models.get(spec.model) or fetch(spec)
            self._models[spec.model] = model
        prepared = prepare(spec, model, tracker)
        trial = run_trial(spec, prepared, tracker, hooks.on_event, parent=hooks.parent, force=hooks.force, check=hooks.check)
        result = trial.result
        rate = None if result.steady_missing_slices else result.tokens_per_s  # Of fewer slices it is not that of the point's mesh.
        return Ran(trial.run_id, trial.skipped, spec.optim.last_step, result.final_loss, rate)


def values_of(spec: ExperimentSpec, trial: Trial) -> dict[str, Any]:
    """Return what `crossmesh finetune` says of a finished trial."""
    result, prepared = trial.result, trial.prepared
    return {
        result.adapter_folder.name: str(result.adapter_folder),
        "final_loss": result.final_loss,
        **({"emulated": True} if spec.hardware.emulated else {}),
        "tokens_per_s": result.tokens_per_s,
        "padded_tokens_per_s": result.padded_tokens_per_s,
        "packing_efficiency": result.packing_efficiency,
        "seconds": result.seconds,
        "science_fingerprint": prepared.science.digest,
        "system_fingerprint": prepared.system.digest,
        **({"dropped_rows": prepared.dropped_by_reason} if prepared.dropped else {}),
        "run_id": trial.run_id,
        "already_done": trial.skipped,
    }
