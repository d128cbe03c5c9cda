"""Training as the driver sees it: attempts until there is a result, each started only when the one before may be tried again.

Everything that needs a framework runs in a Ray task of the worker environment; the driver imports none. Started again in the same run
folder, training continues from its newest sound checkpoint, and a finished run is returned at once.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from crossmesh.adapters.init_adapter import InitAdapter
from crossmesh.cluster.session import ray_session, require_chips
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.environments import environment
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.files import read_json
from crossmesh.hardware.devices import Cpu
from crossmesh.models.quantization import check_torch_quantization
from crossmesh.models.weights.fetch import ModelFolder
from crossmesh.train.attempt import run_attempt
from crossmesh.train.events import OnEvent, StepEvent, WarningEvent
from crossmesh.train.loop import steady, steady_steps
from crossmesh.train.retry import retries_left, retry_text
from crossmesh.train.slices import find_slices
from crossmesh.train.train_job import ResumeCheckpoint, TrainJob
from crossmesh.train.trained import trained_digest


@dataclass(frozen=True)
class TrainResult:
    """A finished training run."""

    adapter_folder: Path
    """PEFT adapter; with `lora.rank=0` the whole model."""
    adapter_digest: str
    data_digest: str
    history: tuple[StepEvent, ...]
    """Every optimizer step, interrupted attempts included."""

    @property
    def losses(self) -> tuple[tuple[int, float], ...]:
        """(step, loss in nats per loss token), steps counted from 1."""
        return tuple((event.step, event.loss) for event in self.history)

    @property
    def final_loss(self) -> float:
        """Loss of the last step's batch, before that step."""
        return self.history[-1].loss

    @property
    def tokens_per_s(self) -> float:
        """Steady throughput in real tokens per second (`loop.steady`)."""
        return steady(self.history, lambda event: event.tokens_per_s)

    @property
    def padded_tokens_per_s(self) -> float:
        """Steady throughput in computed tokens per second, padding included."""
        return steady(self.history, lambda event: event.padded_tokens_per_s)

    @property
    def packing_efficiency(self) -> float:
        """Share of the computed tokens that was not padding."""
        return self.tokens / sum(event.padded_tokens for event in self.history)

    @property
    def seconds(self) -> float:
        """Wall clock of all steps, those that compile included; loading, checkpoints and export are not."""
        return sum(event.seconds for event in self.history)

    @property
    def steady_missing_slices(self) -> int:
        """How many slices of the mesh the steps lacked over which the steady throughput is taken (`mesh.min_dcn`)."""
        return steady_steps(self.history)[0].missing_slices

    def rented_s(self, slices: int) -> float:
        """`seconds` of a mesh of `slices`, less the share of those that no step ran on (`mesh.min_dcn`).

        A slice that is held until enough others have come is not counted: from when on it was held is not recorded.
        """
        return sum(event.seconds * (slices - event.missing_slices) / slices for event in self.history)

    @property
    def tokens(self) -> int:
        """Real tokens trained on."""
        return sum(event.real_tokens for event in self.history)

    @property
    def loss_tokens(self) -> int:
        """Tokens that carried loss."""
        return sum(event.loss_tokens for event in self.history)


def train(
    spec: ExperimentSpec,
    model: ModelFolder,
    run_folder: Path,
    on_event: OnEvent,
    init_adapter: InitAdapter | None = None,
    check: Callable[[], None] = lambda: None,
    resume: ResumeCheckpoint | None = None,
    order: str = "",
) -> TrainResult:
    """Fine-tune one adapter as `spec` says and return it with its history.

    Opens a Ray session unless one is open. Ctrl-C (and, in a session, SIGTERM) asks the worker to stop at the next step, which writes
    a checkpoint, waits a bounded time, cancels what is left and raises `KeyboardInterrupt`; a second Ctrl-C does not wait.

    Args:
        spec: the experiment.
        model: the base, made local.
        run_folder: absolute; one for each trial, and the place where an interrupted run continues.
        on_event: hears of stages, steps and checkpoints, in this process. Steps of earlier attempts are told again.
        init_adapter: what `lora.adapter` names (`adapters/init_adapter.py`).
        check: called several times a second while workers run; what it raises stops the training as an interrupt does.
        resume: what `checkpoint.resume_from` names.
        order: digest of the rows of every step; empty: not known.

    Raises:
        InputError: bad data, hardware that the backend does not run on, or a run folder of another trial.
        CrossmeshError: the training diverged, or its workers failed and `retry` allows no further attempt; the message names the log.
    """
    job = _new_attempt(spec, model, run_folder, init_adapter, resume, order)
    if done := _finished(job, on_event):
        return done
    check_trainable(spec)
    if resume:
        job.checkpoints(resume.data_digest).begin_with(resume.checkpoints, resume.step)
    left = spec.retry
    with ray_session(spec.storage):
        require_chips(spec.hardware.slice.device, spec.training_chips)
        while True:
            job = replace(job, slices=find_slices(spec, on_event, check))
            if job.slices < spec.mesh.dcn:
                on_event(WarningEvent(f"Training on {job.slices} of {spec.mesh.dcn} slices (mesh.min_dcn={spec.mesh.min_dcn})."))
            job.attempt.mkdir(parents=True)
            attempt = run_attempt(job, on_event, check)
            if done := _finished(job, on_event):
                return done
            if not attempt.grows:
                again = retries_left(attempt.ending, left)
                if again is None:
                    break
                left = again
                on_event(WarningEvent(retry_text(attempt.ending, attempt.failure, left)))
            job = _new_attempt(spec, model, run_folder, init_adapter, resume, order)
    attempt.raise_failure()
    raise CrossmeshError(f"Training ended without a result. Ray's files of the attempt are in {job.attempt}; run again to continue.")


def _new_attempt(
    spec: ExperimentSpec,
    model: ModelFolder,
    run_folder: Path,
    init_adapter: InitAdapter | None,
    resume: ResumeCheckpoint | None,
    order: str,
) -> TrainJob:
    name = f"{time.strftime('%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:6]}"
    return TrainJob(spec, model, run_folder, run_folder / "attempts" / name, init_adapter, resume, order)


def check_trainable(spec: ExperimentSpec) -> None:
    """Raise `InputError` for hardware that cannot be trained on with this backend and precision; needs no Ray, files or weights."""
    try:
        environment(f"train/{spec.backend_name}", spec.hardware.slice.device)
    except InputError as error:
        raise InputError(f"backend {spec.backend_name!r} does not train on hardware.name={spec.hardware.name!r}. {error}") from error
    if spec.backend_name == "torch":
        check_torch_quantization(spec.model.quantization, spec.mesh_shape, cpu=isinstance(spec.hardware.slice.device, Cpu))


def _finished(job: TrainJob, on_event: OnEvent) -> TrainResult | None:
    """Return the result on disk; None when there is none, or when it or its adapter is not what it was."""
    if not job.result.is_file():
        return None
    try:
        stored = read_json(job.result)
        identity, wanted, data_digest = stored["identity"], stored["adapter_digest"], stored["data_digest"]
        history = tuple(StepEvent(**event) for event in stored["history"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = f"{job.result} is damaged ({type(error).__name__}); it is made again from the last checkpoint."
        on_event(WarningEvent(text))
        job.result.unlink()
        return None
    if identity != job.identity:
        raise InputError(
            f"{job.run_folder} holds a finished run of another trial: model, data or settings differ from this spec's. "
            "Give another run folder, or run the job with force=true to train it anew."
        )
    try:
        found = trained_digest(job)
    except (InputError, OSError):
        found = ""
    if found != wanted:
        on_event(WarningEvent(f"{job.trained} is damaged; it is exported again from the last checkpoint."))
        job.result.unlink()
        return None
    return TrainResult(job.trained, found, data_digest, history)
