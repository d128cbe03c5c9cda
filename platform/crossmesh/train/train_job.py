"""What the driver hands to the training worker, and the files of a run folder through which the two speak.

A run folder holds `checkpoints/`, `adapter/` or `model/`, `result.json` and one folder for each attempt with its events, its errors and
the driver's request to stop. All of it lies under `storage.root`, which driver and workers share, so it also survives both.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

from crossmesh.adapters.init_adapter import InitAdapter
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.fingerprint import base_precision, dropout_science
from crossmesh.files import canonical_json, digest_text
from crossmesh.models.weights.fetch import ModelFolder
from crossmesh.objectives.objective import objective_record
from crossmesh.train.checkpoint import CheckpointStore


@dataclass(frozen=True)
class ResumeCheckpoint:
    """The last state of another run, with which a run begins (`checkpoint.resume_from`)."""

    checkpoints: str
    """Folder or fsspec URL of the other run's checkpoints."""
    step: int
    """Steps that it had done."""
    science: str
    """Its science fingerprint."""
    data_digest: str
    """Of the rows, the same for both."""
    settings: str = ""
    """Digest of how it was trained (`fingerprint.settings_digest`)."""
    resumed_from: str = ""
    """What its own science says of where it began."""
    alike: bool = False
    """Whether the run that begins here is trained as it was: it ends with the bits of one run that was never interrupted."""

    @property
    def sets_apart(self) -> str:
        """What the science of the run that begins here says of that: of one that is trained alike nothing that this one's did not."""
        return self.resumed_from if self.alike else self.science


@dataclass(frozen=True)
class TrainJob:
    """One attempt at a training run; sent to the worker."""

    spec: ExperimentSpec
    model: ModelFolder
    run_folder: Path
    attempt: Path
    """Folder of this attempt."""
    init_adapter: InitAdapter | None = None
    """The adapter that training continues from; None: the seed's initial values."""
    resume: ResumeCheckpoint | None = None
    """The state that training begins with; None: that of step 0."""
    order: str = ""
    """Digest of the rows of every step, where whoever asks knows them; empty: what decides them counts in its place."""
    slices: int = 0
    """Slices that this attempt runs on; 0: all of `mesh.dcn`."""

    @property
    def placed(self) -> ExperimentSpec:
        """The spec on the slices of this attempt; `spec` is the trial's."""
        return self.spec.on_slices(self.slices or self.spec.mesh.dcn)

    @property
    def events(self) -> Path:
        """One event a line, appended by the worker."""
        return self.attempt / "events.jsonl"

    @property
    def system(self) -> Path:
        """One file a node: its system events, one a line, appended by one worker there."""
        return self.attempt / "system"

    @property
    def stop(self) -> Path:
        """Exists when the driver asks the worker to stop at the next step."""
        return self.attempt / "stop"

    @property
    def error(self) -> Path:
        """A failure whose message is complete by itself."""
        return self.attempt / "error.json"

    @property
    def traceback(self) -> Path:
        """A failure that is a bug, or the death of a worker."""
        return self.attempt / "worker.log"

    @property
    def preempted(self) -> Path:
        """Exists when the worker was told that its node goes, and stored a checkpoint; the run is to be started again elsewhere."""
        return self.attempt / "preempted"

    @property
    def diverged(self) -> Path:
        """The step at which loss or gradient was no finite number any more: its rows and figures."""
        return self.run_folder / "diverged.json"

    @property
    def ranks(self) -> Path:
        """One file a worker: where it runs."""
        return self.attempt / "ranks"

    @property
    def trained(self) -> Path:
        """What was trained: a PEFT adapter, or with `lora.rank=0` a whole model."""
        return self.run_folder / ("model" if self.spec.lora.full else "adapter")

    def checkpoints(self, data_digest: str) -> CheckpointStore:
        """The run's checkpoints, for training on rows of this digest."""
        return CheckpointStore(
            checkpoint_folder(self.run_folder),
            digest_text(canonical_json([self.identity, data_digest])),
            self.spec.checkpoint.keep,
            attempt=self.attempt.name,
            target=checkpoint_target(self.spec.checkpoint.target, self.run_folder),
        )

    @property
    def fitted(self) -> Path:
        """How long Ray Train's `fit()` took; `ranks` say how long their worker's loop did."""
        return self.attempt / "fitted.json"

    @property
    def result(self) -> Path:
        """Exists when the run is finished."""
        return self.run_folder / "result.json"

    @property
    def cache(self) -> Path:
        """What any run may use again."""
        return self.spec.storage.path / "cache"

    @property
    def identity(self) -> str:
        """Digest of everything that decides what this run computes, but for the rows: those have a digest of their own."""
        spec, model = self.spec, self.model
        optim = {**asdict(spec.optim), "warmup_steps": spec.optim.warmup}
        del optim["stop_at"]
        ends = 0 if spec.optim.last_step == spec.optim.steps else spec.optim.last_step
        part = [ends, self.resume.sets_apart if self.resume else ""]
        decided = [spec.data.seed, spec.packing.window if spec.packing.mode == "stream" else 0]
        parts = {
            "model": [model.weights_digest, spec.model.dtype, base_precision(spec)],
            # A wholly trained model has these files of its base; what else they change shows in the rows.
            **({"files": [model.tokenizer_digest, model.template_digest]} if spec.lora.full else {}),
            "order": self.order or decided,
            "packing": [spec.packing.mode, spec.sequence_length],
            "lora": "full"
            if spec.lora.full
            else {**asdict(spec.lora), **dropout_science(spec), "adapter": self.init_adapter.digest if self.init_adapter else ""},
            "optim": optim,
            "batch": [spec.batch.size, spec.micro_batch],
            "mesh": asdict(spec.mesh_shape),
            "hardware": spec.hardware.name,
            "backend": [spec.backend_name, spec.backend.remat, spec.attention],
            **({"compile": spec.backend.compile} if spec.backend.compile != "none" else {}),
            **({"objective": objective} if (objective := objective_record(spec.objective)) else {}),
            **({"part": part} if any(part) else {}),
        }
        return digest_text(canonical_json(parts))


def checkpoint_folder(run_folder: Path) -> Path:
    """Where a run's checkpoints are collected, and kept when there is no `checkpoint.target`."""
    return run_folder / "checkpoints"


def checkpoint_target(target: str, run_folder: Path) -> str:
    """URL of a run's own checkpoints below `checkpoint.target`; empty: they stay in the run folder."""
    return f"{target.rstrip('/')}/{run_folder.name}" if target else ""
