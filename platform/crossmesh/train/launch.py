"""Training as the driver sees it: submit, listen, stop when asked, and hand back the result.

Everything that needs a framework runs in a Ray task of the worker environment; the driver imports none. Started again in the same run
folder, training continues from its newest sound checkpoint, and a finished run is returned at once.
"""

import json
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from crossmesh.adapters.peft_format import adapter_digest
from crossmesh.cluster import ray_session, require_chips
from crossmesh.environments import environment
from crossmesh.errors import BudgetReachedError, CrossmeshError, InputError, RejectedError
from crossmesh.files import read_json, write_text
from crossmesh.models.weights import ModelFolder
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.train.assignment import Assignment
from crossmesh.train.events import OnEvent, StageEvent, StepEvent, WarningEvent, from_json
from crossmesh.train.loop import steady_tokens_per_s
from crossmesh.train.scaling import scaling
from crossmesh.train.trainer import fit

_POLL_S = 0.2
_CANCEL_S = 15.0
"""How long a cancelled attempt may take to end."""

_ERRORS: dict[int, type[CrossmeshError]] = {
    error.exit_code: error for error in (CrossmeshError, InputError, RejectedError, BudgetReachedError)
}


@dataclass(frozen=True)
class TrainResult:
    """A finished training run."""

    adapter_folder: Path
    """PEFT adapter."""
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
        """Steady throughput in real tokens per second (`loop.steady_tokens_per_s`)."""
        return steady_tokens_per_s(self.history)

    @property
    def seconds(self) -> float:
        """Wall clock of all steps, those that compile included; loading, checkpoints and export are not."""
        return sum(event.seconds for event in self.history)

    @property
    def tokens(self) -> int:
        """Real tokens trained on."""
        return sum(event.real_tokens for event in self.history)

    @property
    def loss_tokens(self) -> int:
        """Tokens that carried loss."""
        return sum(event.loss_tokens for event in self.history)


def train(spec: ExperimentSpec, model: ModelFolder, run_folder: Path, on_event: OnEvent) -> TrainResult:
    """Fine-tune one adapter as `spec` says and return it with its history.

    Opens a Ray session unless one is open. Ctrl-C (and, in a session, SIGTERM) asks the worker to stop at the next step, which writes
    a checkpoint, waits a bounded time, cancels what is left and raises `KeyboardInterrupt`; a second Ctrl-C does not wait.

    Args:
        spec: the experiment.
        model: the base, made local.
        run_folder: absolute; one for each trial, and the place where an interrupted run continues.
        on_event: hears of stages, steps and checkpoints, in this process. Steps of earlier attempts are told again.

    Raises:
        InputError: bad data, hardware that this version cannot train on, or a run folder of another trial.
        CrossmeshError: the training diverged or its worker failed; the message names the log.
    """
    attempt = run_folder / "attempts" / f"{time.strftime('%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:6]}"
    assignment = Assignment(spec, model, run_folder, attempt)
    if done := _finished(assignment, on_event):
        return done
    check_trainable(spec)
    with ray_session(spec.storage):
        require_chips(spec.hardware.slice.device, spec.hardware.slice.device.chip_count())
        attempt.mkdir(parents=True)
        _run_attempt(assignment, on_event)
    result = _finished(assignment, on_event)
    if result is None:
        raise CrossmeshError(f"Training ended without a result. Ray's files of the attempt are in {attempt}; run again to continue.")
    return result


def check_trainable(spec: ExperimentSpec) -> None:
    """Raise `InputError` for hardware that this version cannot train on, or not with this backend; needs no Ray, files or weights."""
    device = spec.hardware.slice.device
    workers = scaling(device).num_workers
    if workers > 1:
        raise InputError(
            f"hardware.name={spec.hardware.name!r} needs {workers} training workers. Allowed: hardware of one worker "
            "(a CPU, one GPU, one TPU host); training over several is not built yet."
        )
    try:
        environment(f"train/{spec.backend_name}", device)
    except InputError as error:
        raise InputError(f"backend {spec.backend_name!r} does not train on hardware.name={spec.hardware.name!r}. {error}") from error


def _finished(assignment: Assignment, on_event: OnEvent) -> TrainResult | None:
    """Return the result on disk; None when there is none, or when it or its adapter is not what it was."""
    if not assignment.result.is_file():
        return None
    try:
        stored = read_json(assignment.result)
        identity, wanted, data_digest = stored["identity"], stored["adapter_digest"], stored["data_digest"]
        history = tuple(StepEvent(**event) for event in stored["history"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = f"{assignment.result} is damaged ({type(error).__name__}); it is made again from the last checkpoint."
        on_event(WarningEvent(text))
        assignment.result.unlink()
        return None
    if identity != assignment.identity:
        raise InputError(
            f"{assignment.run_folder} holds a finished run of another trial: model, data or settings differ from this spec's. "
            "Give another run folder, or run the job with force=true to train it anew."
        )
    try:
        found = adapter_digest(assignment.adapter)
    except InputError:
        found = ""
    if found != wanted:
        on_event(WarningEvent(f"The adapter in {assignment.adapter} is damaged; it is exported again from the last checkpoint."))
        assignment.result.unlink()
        return None
    return TrainResult(assignment.adapter, found, data_digest, history)


def _run_attempt(assignment: Assignment, on_event: OnEvent) -> None:
    """Run one attempt to its end; raise what stopped it."""
    spec = assignment.spec
    worker = environment(f"train/{spec.backend_name}", spec.hardware.slice.device)
    on_event(StageEvent(f"starting Ray Train ({spec.backend_name}, {spec.hardware.name})"))
    task = ray.remote(fit).options(num_cpus=0, max_retries=0, runtime_env=worker.runtime_env).remote(assignment)
    listener = _Listener(assignment.events, on_event)
    failure: Exception | None = None
    try:
        while not ray.wait([task], timeout=_POLL_S)[0]:
            listener.listen()
        try:
            ray.get(task)
        except ray.exceptions.RayError as error:
            failure = error
        listener.listen()
    except BaseException as reason:
        if isinstance(reason, KeyboardInterrupt) and listener.patience_s:
            on_event(StageEvent("stopping after this step, with a checkpoint; Ctrl-C again does not wait"))
        _stop(task, assignment, listener)
        raise
    _raise_failure(assignment, failure)


def _raise_failure(assignment: Assignment, failure: Exception | None) -> None:
    """Raise the user's error as itself, and anything else as one message that names its log."""
    if assignment.error.is_file():
        stored = read_json(assignment.error)
        raise _ERRORS.get(stored["exit_code"], CrossmeshError)(stored["message"])
    if failure is None:
        return
    if not assignment.traceback.is_file():  # The worker died before it could say why: what Ray saw of it.
        write_text(assignment.traceback, str(failure))
    lines = [line for line in assignment.traceback.read_text(encoding="utf-8").splitlines() if line.strip()]
    raise CrossmeshError(
        f"The training worker failed: {lines[-1].strip()}. The whole story is in {assignment.traceback}. "
        "Checkpoints are kept: run again to continue from the newest."
    ) from failure


def _stop(task: Any, assignment: Assignment, listener: "_Listener") -> None:
    """Ask the worker to stop after its step, wait for that as long as a few steps take, then cancel.

    Where no step was taken there is nothing to keep, and nothing is waited for.
    """
    assignment.stop.touch()
    try:
        deadline = time.monotonic() + listener.patience_s
        while time.monotonic() < deadline:
            if ray.wait([task], timeout=_POLL_S)[0]:
                listener.listen()
                return
            listener.listen()
    finally:
        ray.cancel(task)
        ray.wait([task], timeout=_CANCEL_S)


class _Listener:
    """Reads the worker's events as they are appended and passes them on."""

    def __init__(self, path: Path, on_event: OnEvent) -> None:
        self._path = path
        self._on_event = on_event
        self._offset = 0
        self._step_s: float | None = None

    @property
    def patience_s(self) -> float:
        """How long a stop may take: three steps and the time to store a checkpoint; nothing before the first step."""
        return 0.0 if self._step_s is None else min(120.0, 3 * self._step_s + 15.0)

    def listen(self) -> None:
        """Pass on what is new; a line that is not complete yet waits."""
        if not self._path.is_file():
            return
        with self._path.open("rb") as stream:
            stream.seek(self._offset)
            new = stream.read()
        complete = new[: new.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.splitlines():
            event = from_json(json.loads(line))
            if isinstance(event, StepEvent):
                self._step_s = event.seconds
            self._on_event(event)
