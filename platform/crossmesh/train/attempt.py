"""One attempt at a training run as the driver sees it: start it, listen, stop it when asked, and say how it ended."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from crossmesh.cluster.calls import cancel_task, task_options
from crossmesh.cluster.nodes import QUIET_S, why_nodes_are_missing
from crossmesh.cluster.session import users_cluster
from crossmesh.environments import environment
from crossmesh.errors import BudgetReachedError, CrossmeshError, InputError, RejectedError
from crossmesh.files import read_json, write_text
from crossmesh.hardware.devices import Cpu
from crossmesh.train.events import OnEvent, StageEvent, StartEvent, StepEvent, from_json
from crossmesh.train.loop import DivergedError
from crossmesh.train.nodes import keep_coordinator_on_head, lost_nodes, release_reservations
from crossmesh.train.retry import Ending, Failure, FailureKind, judge
from crossmesh.train.scaling import scaling
from crossmesh.train.slices import MissingSlices, requests_for
from crossmesh.train.train_job import TrainJob
from crossmesh.train.trainer import fit

_POLL_S = 0.2
_CANCEL_S = 15.0
"""How long a cancelled attempt may take to end."""

_ERRORS: dict[int, type[CrossmeshError]] = {
    error.exit_code: error for error in (CrossmeshError, InputError, RejectedError, BudgetReachedError)
}


@dataclass(frozen=True)
class Attempt:
    """An attempt that has ended."""

    job: TrainJob
    ending: Ending
    failure: Failure | None
    grows: bool = False
    """Whether it was stopped, with a checkpoint, because the run can go on on more slices."""

    def raise_failure(self) -> None:
        """Raise the user's error as itself, and anything else as one message that names its log; nothing when there is none."""
        if self.job.error.is_file():
            stored = read_json(self.job.error)
            if self.job.diverged.is_file():
                raise DivergedError(stored["message"])
            raise _ERRORS.get(stored["exit_code"], CrossmeshError)(stored["message"])
        if self.failure is None:
            return
        log = self.job.traceback
        if not log.is_file():  # The worker died before it could say why: what Ray saw of it.
            write_text(log, f"{self.failure.text}\n")
        lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
        what = "workers could not be started" if self.failure.kind is FailureKind.START else "worker failed"
        raise CrossmeshError(
            f"The training {what}: {lines[-1].strip().rstrip('.') if lines else self.failure.kind.value}. Full log: {log}. "
            "Checkpoints are kept: run again to continue from the newest."
        )


def run_attempt(job: TrainJob, on_event: OnEvent, check: Callable[[], None]) -> Attempt:
    """Run one attempt to its end. An interrupt, or what `check` raises, asks the workers to stop after their step, with a checkpoint."""
    spec = job.placed
    device, workers = spec.hardware.slice.device, scaling(spec)
    worker = environment(
        f"train/{spec.backend_name}", device, workers_per_node=workers.num_workers, devices_per_worker=workers.devices_per_worker
    )
    on_event(StartEvent(f"starting Ray Train ({spec.backend_name}, {spec.hardware.name}, {_count(workers.num_workers)})"))
    if users_cluster() is not None:
        keep_coordinator_on_head()
    with _missing_slices(job) as missing, task_options(worker, device, spec.mesh.dcn) as options:
        failure, grows = _run(options, job, on_event, check, missing)
    refused, preempted = job.error.is_file(), job.preempted.exists()
    blamed_on_code = failure is not None and failure.kind is FailureKind.RAISED and not refused
    gone = blamed_on_code and bool(lost_nodes(_nodes(job)))
    ending = judge(failure, refused=refused, preempted=preempted, node_lost=gone)
    return Attempt(job, ending, failure, grows=grows and ending is Ending.DONE)


@contextmanager
def _missing_slices(job: TrainJob) -> Iterator[MissingSlices | None]:
    """What looks for the slices that the attempt lacks; None where the run always has all."""
    spec, device = job.spec, job.spec.hardware.slice.device
    if spec.mesh.least_dcn == spec.mesh.dcn or isinstance(device, Cpu):
        yield None
        return
    with requests_for(device) as requests:
        yield MissingSlices(spec, job.placed.mesh.dcn, requests)


def _run(
    options: Mapping[str, Any], job: TrainJob, on_event: OnEvent, check: Callable[[], None], missing: MissingSlices | None
) -> tuple[Failure | None, bool]:
    """Return what failed, and whether the workers were asked to stop because there are more slices."""
    # In a process that ends with it: Ray Train's controller is its child and ends then too, whatever happened.
    task = ray.remote(max_calls=1)(fit).options(**options).remote(job)
    listener = _Listener(job, on_event)
    ended_well = grows = False
    try:
        while not ray.wait([task], timeout=_POLL_S)[0]:
            check()
            listener.listen()
            if missing and not grows and job.events.is_file():
                missing.begin()
                if found := missing.look():
                    grows = True
                    there = f"{found} of {job.spec.mesh.dcn} slices are there"
                    on_event(StageEvent(f"{there}: stopping after this step, with a checkpoint, to use them"))
                    job.stop.touch()
        failure = _outcome(task)
        ended_well = failure is None
        listener.listen()
    except BaseException as reason:
        if isinstance(reason, KeyboardInterrupt) and listener.patience_s:
            on_event(StageEvent("stopping after this step, with a checkpoint; Ctrl-C again does not wait"))
        _stop(task, job, listener)
        raise
    finally:
        with suppress(ray.exceptions.RayError):  # Of a cluster that is gone; why the attempt ended must not be hidden.
            release_reservations(wait=not ended_well)
    return failure, grows


def _outcome(task: Any) -> Failure | None:
    """What the trainer returned; a trainer that died with its node counts as a worker that did."""
    try:
        failure: Failure | None = ray.get(task)
        return failure
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, CrossmeshError):
            raise error.cause from None
        return Failure(FailureKind.RAISED, str(error))
    except ray.exceptions.RayError as error:
        return Failure(FailureKind.DIED, str(error))


def _nodes(job: TrainJob) -> list[str]:
    """Nodes that the workers of the attempt ran on."""
    return sorted({read_json(file)["node"] for file in job.ranks.glob("*.json")})


def _stop(task: Any, job: TrainJob, listener: "_Listener") -> None:
    """Ask the workers to stop after their step, wait for that as long as a few steps take, then cancel.

    Where no step was taken there is nothing to keep, and nothing is waited for.
    """
    job.stop.touch()
    try:
        deadline = time.monotonic() + listener.patience_s
        while time.monotonic() < deadline:
            if ray.wait([task], timeout=_POLL_S)[0]:
                listener.listen()
                return
            listener.listen()
    finally:
        cancel_task(task, _CANCEL_S)


class _Tail:
    """Reads a file of lines as they are appended; a line that is not complete yet waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def lines(self) -> list[bytes]:
        with self._path.open("rb") as stream:
            stream.seek(self._offset)
            new = stream.read()
        complete = new[: new.rfind(b"\n") + 1]
        self._offset += len(complete)
        return complete.splitlines()


class _Listener:
    """Reads the events of rank 0 and of each node as they are appended and passes them on."""

    def __init__(self, job: TrainJob, on_event: OnEvent) -> None:
        self._job = job
        self._on_event = on_event
        self._tails: dict[Path, _Tail] = {}
        self._step_s: float | None = None
        self._told_at = time.monotonic()
        self._since_s = time.time()

    @property
    def patience_s(self) -> float:
        """How long a stop may take: three steps and the time to store a checkpoint; nothing before the first step."""
        return 0.0 if self._step_s is None else min(120.0, 3 * self._step_s + 15.0)

    def listen(self) -> None:
        """Pass on what is new."""
        path = self._job.events
        if not path.is_file():
            self._report_missing_workers()
            return
        for one in (path, *self._job.system.glob("*.jsonl")):
            for line in self._tails.setdefault(one, _Tail(one)).lines():
                event = from_json(json.loads(line))
                if isinstance(event, StepEvent):
                    self._step_s = event.seconds
                self._on_event(event)

    def _report_missing_workers(self) -> None:
        if time.monotonic() - self._told_at < QUIET_S:
            return
        self._told_at = time.monotonic()
        workers = scaling(self._job.placed)
        asked = ", ".join(f"{amount:g} {name}" for name, amount in workers.resources_per_worker.items())
        free = ray.available_resources()
        there = ", ".join(f"{free.get(name, 0):g} {name}" for name in workers.resources_per_worker)
        self._on_event(
            StageEvent(
                f"waiting for {_count(workers.num_workers)} with {asked} each; free now: {there}. "
                f"{why_nodes_are_missing(self._job.placed.hardware.slice.device, self._since_s)}; Ctrl-C stops"
            )
        )


def _count(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"
