"""What happens to a training when a process or a node is taken from under it: it goes on, and ends as if nothing had been.

Losses are compared bit for bit: on a CPU in float32 a resumed run is the uninterrupted one.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossmesh.cluster.session import Session, ray_session
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.config.training import DataSpec, HardwareSpec, MeshSpec, OptimSpec
from crossmesh.errors import InputError
from crossmesh.models.weights.fetch import ModelFolder, fetch_model
from crossmesh.ray_cleanup import end_processes, processes_of
from crossmesh.track.trackers import open_tracker
from crossmesh.train.events import CheckpointEvent, Event, StepEvent, WarningEvent
from crossmesh.train.launch import TrainResult, train

pytestmark = [pytest.mark.integration, pytest.mark.full]

Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with ray_session(StorageSpec(str(tmp_path_factory.mktemp("session")))) as opened:
        yield opened


@pytest.fixture(scope="module")
def model(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    storage = tmp_path_factory.mktemp("model")
    return fetch_model(tiny.tiny_spec(storage).model, storage)


@pytest.fixture(scope="module")
def expected(tiny_training: Lines) -> list[list[float]]:
    """Step and loss of the uninterrupted run."""
    losses: list[list[float]] = tiny_training[-2]["losses"]
    return losses


def workers(session: Session) -> list[int]:
    """Process ids of the training workers of a local Ray."""
    assert session.folder is not None
    return [pid for pid in processes_of(session.folder) if b"RayTrainWorker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


class Fault:
    """Hears a training and does something once, at a step; keeps what was said."""

    def __init__(self, step: int, do: Callable[[], object]) -> None:
        self.step = step
        self.do = do
        self.done = False
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, StepEvent) and event.step >= self.step and not self.done:
            self.done = True
            self.do()

    @property
    def warnings(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, WarningEvent)]


def losses(result: TrainResult) -> list[list[float]]:
    return [list(pair) for pair in result.losses]


def starts(result: TrainResult) -> list[int]:
    return [event.step for event in result.history if event.first]


def tiny_spec(tiny: Any, storage: Path, **changes: Any) -> ExperimentSpec:
    tiny.write_rows(storage)
    return replace(tiny.tiny_spec(storage), **changes)


def test_a_killed_worker_is_started_again(
    tiny: Any, session: Session, tmp_path: Path, model: ModelFolder, expected: list[list[float]]
) -> None:
    fault = Fault(23, lambda: os.kill(workers(session)[0], signal.SIGKILL))
    result = train(tiny_spec(tiny, tmp_path), model, tmp_path / "run", fault)
    assert len(fault.warnings) == 1
    assert "retry.failures" in fault.warnings[0]
    assert losses(result) == expected
    # One save may be in flight: of the checkpoints before it, at every fourth step, the last is there.
    assert starts(result)[1] >= 17


def test_a_terminated_worker_stores_a_checkpoint_and_is_started_again(
    tiny: Any, session: Session, tmp_path: Path, model: ModelFolder, expected: list[list[float]]
) -> None:
    fault = Fault(6, lambda: os.kill(workers(session)[0], signal.SIGTERM))
    result = train(tiny_spec(tiny, tmp_path), model, tmp_path / "run", fault)
    assert len(fault.warnings) == 1
    assert "retry.preemptions" in fault.warnings[0]
    stopped_after = starts(result)[1] - 1
    assert stopped_after in [event.step for event in fault.events if isinstance(event, CheckpointEvent)]
    assert losses(result) == expected


def test_the_death_of_one_of_two_ranks_is_that_of_the_group(tiny: Any, session: Session, tmp_path: Path, model: ModelFolder) -> None:
    spec = tiny_spec(
        tiny,
        tmp_path,
        hardware=HardwareSpec(cpu_devices=2),
        mesh=MeshSpec(data=2, fsdp=1),
        optim=OptimSpec(steps=14, learning_rate=1e-2),
    )
    whole = train(spec, model, tmp_path / "whole", lambda event: None)
    fault = Fault(9, lambda: os.kill(workers(session)[-1], signal.SIGKILL))
    result = train(spec, model, tmp_path / "run", fault)
    assert len(fault.warnings) == 1
    assert starts(result)[1] >= 5
    assert losses(result) == losses(whole)
    assert result.adapter_digest == whole.adapter_digest


def test_an_error_of_the_user_in_two_ranks_is_one_message_and_not_tried_again(
    tiny: Any, session: Session, tmp_path: Path, model: ModelFolder
) -> None:
    data = DataSpec(source=str(tmp_path / "rows.jsonl"), max_length=8)
    spec = tiny_spec(tiny, tmp_path, data=data, hardware=HardwareSpec(cpu_devices=2), mesh=MeshSpec(data=2, fsdp=1))
    fault = Fault(1, lambda: None)
    with pytest.raises(InputError, match=r"data\.max_length=8 is below the shortest row"):
        train(spec, model, tmp_path / "run", fault)
    assert fault.warnings == []
    assert len(list((tmp_path / "run" / "attempts").iterdir())) == 1


def start_job(checkout: Path, storage: Path, environment: dict[str, str]) -> "subprocess.Popen[str]":
    """`jobs/finetune.py` as a user starts it."""
    arguments = ["model.family=llama", "model.weights=random://tiny_llama@0", f"data.source={storage}/rows.jsonl", "data.max_length=96"]
    arguments += [
        "optim.steps=20",
        "optim.learning_rate=0.01",
        "batch.size=16",
        "checkpoint.every_steps=4",
        "tracking.system_metrics=false",
    ]
    command = [sys.executable, str(checkout / "jobs" / "finetune.py"), *arguments, f"storage.root={storage}", "output=json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)


def test_a_killed_driver_leaves_a_run_that_continues_in_mlflow_too(
    tiny: Any, checkout: Path, clean_environment: dict[str, str], tmp_path: Path
) -> None:
    found: dict[str, Any] = {}
    for name, kill in (("whole", False), ("parts", True)):
        storage, temporary = tmp_path / name, Path(f"/tmp/cm-f-{os.getpid()}-{name[0]}")
        temporary.mkdir()
        tiny.write_rows(storage)
        try:
            process = start_job(checkout, storage, clean_environment | {"TMPDIR": str(temporary)})
            if kill:
                while not list(storage.glob("trials/*/checkpoints/step-00000004")):
                    assert process.poll() is None
                    time.sleep(0.01)
                process.kill()
                process.wait()
                end_processes(temporary, grace_s=20.0, ask_s=5.0)
                process = start_job(checkout, storage, clean_environment | {"TMPDIR": str(temporary)})
            out, _ = process.communicate(timeout=300)
            assert process.returncode == 0
            result = json.loads(out.splitlines()[-1])
            tracker = open_tracker(TrackingSpec(), StorageSpec(str(storage)))
            found[name] = {
                metric: tracker.history(result["run_id"], f"train/{metric}") for metric in ("loss", "grad_norm", "learning_rate")
            }
        finally:
            end_processes(temporary, grace_s=0.0, ask_s=5.0)
            shutil.rmtree(temporary, ignore_errors=True)
    assert [step for step, _ in found["parts"]["loss"]] == list(range(1, 21))
    assert found["parts"] == found["whole"]
