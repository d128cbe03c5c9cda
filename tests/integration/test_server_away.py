"""An MLflow server that is killed while jobs log to it: nothing is lost, nothing is there twice, and no step waits."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossmesh.cluster.session import ray_session
from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.config.training import BatchSpec, CheckpointSpec
from crossmesh.track.mlflow.tracker import MlflowTracker
from crossmesh.track.tracked_run import TAG_ADAPTER
from crossmesh.train.events import Event, StepEvent
from crossmesh.trial.trial import fetch, prepare, run_trial
from mlflow_server import MlflowServer, mlflow_server

pytestmark = [pytest.mark.integration, pytest.mark.full]

STEPS = 200
KILLED_AT = 30


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with mlflow_server(tmp_path_factory.mktemp("server")) as found:
        yield found


def test_a_server_that_dies_during_training_costs_no_step_and_no_record(
    server: MlflowServer, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # It is known sooner.
    tiny.write_rows(tmp_path)
    spec = replace(
        tiny.tiny_spec(tmp_path, STEPS),
        batch=BatchSpec(2),
        checkpoint=CheckpointSpec(every_steps=STEPS),
        tracking=TrackingSpec(server.uri),
    )
    said: list[str] = []
    tracker = MlflowTracker(spec.tracking, spec.storage, said.append)
    logging: list[float] = []
    log = tracker.metrics

    def timed(*arguments: Any) -> int:
        started = time.perf_counter()
        count = log(*arguments)
        logging.append(time.perf_counter() - started)
        return count

    monkeypatch.setattr(tracker, "metrics", timed)

    def hear(event: Event) -> None:
        if isinstance(event, StepEvent) and event.step == KILLED_AT:
            server.end()
        elif said and not server.started:  # It is known to be away.
            server.start()

    with ray_session(spec.storage):
        trial = run_trial(spec, prepare(spec, fetch(spec), tracker), tracker, hear)
    if not server.started:
        server.start()
    server.wait()
    run, history = tracker.run(trial.run_id), trial.result.history  # Waits until what is on its way is there.
    later = MlflowTracker(spec.tracking, spec.storage, said.append)
    assert run.status == "FINISHED"
    assert later.history(trial.run_id, "train/loss") == tuple((event.step, event.loss) for event in history)
    tokens, total = [], 0
    for event in history:
        total += event.real_tokens
        tokens.append((event.step, float(total)))
    assert later.history(trial.run_id, "train/tokens") == tuple(tokens)
    assert run.metrics["system/node_0/system_memory_usage_percentage"] > 0
    assert run.tags[TAG_ADAPTER] == trial.result.adapter_digest
    assert run.tags["crossmesh.model_version"] == "models:/random-tiny_llama-0-lora/1"
    (tmp_path / "fetched").mkdir()
    assert (later.download(trial.run_id, "adapter", tmp_path / "fetched") / "adapter_model.safetensors").stat().st_size > 1_000
    assert any("does not take records (Connection refused)" in text for text in said)
    assert list(tmp_path.glob("journal/*/*.jsonl")) == []
    assert max(logging) < 1.0  # A request to a server that is away takes longer; figures are tests/benchmarks/tracking.py's.


DRIVER = """
import os, sys
from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.track.mlflow.tracker import MlflowTracker
tracker = MlflowTracker(TrackingSpec(sys.argv[1]), StorageSpec(sys.argv[2]))
run = tracker.start("torch", "train")
tracker.metrics(run, {"loss": 0.0}, 0)
assert tracker.history(run, "loss") == ((0, 0.0),)
print(run, flush=True)
sys.stdin.readline()
for step in range(1, 2_001):
    tracker.metrics(run, {"loss": float(step), "rate": 1.0}, step)
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_driver_left_is_sent_once_by_those_that_come_next(server: MlflowServer, checkout: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", DRIVER, server.uri, str(tmp_path)]
    environment = {"PYTHONPATH": str(checkout / "platform"), "PATH": "/usr/bin:/bin"}
    driver = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert driver.stdin is not None
    assert driver.stdout is not None
    run = driver.stdout.readline().strip()
    server.end()
    driver.stdin.write("\n")
    driver.stdin.flush()
    assert driver.wait(60) == -9
    server.start()
    server.wait()
    said: list[str] = []
    next_ones: list[MlflowTracker] = []

    def open_tracker() -> None:
        next_ones.append(MlflowTracker(TrackingSpec(server.uri), StorageSpec(str(tmp_path)), said.append))

    threads = [threading.Thread(target=open_tracker) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [text for text in said if text.startswith("sending")] == ["sending 2,000 records that an earlier job left for MLflow"]
    assert next_ones[0].history(run, "loss") == tuple((step, float(step)) for step in range(2_001))
    assert next_ones[1].history(run, "rate") == tuple((step, 1.0) for step in range(1, 2_001))
    assert next_ones[2].resume(run) is not None
    next_ones[2].metrics(run, {"loss": 9.0}, 2_000)
    next_ones[2].finish(run, "KILLED")
    assert next_ones[2].history(run, "loss") == tuple((step, float(step)) for step in range(2_001))
    assert list(tmp_path.glob("journal/*/*.jsonl")) == []


def test_a_server_keeps_runs_and_artifacts_and_its_end_is_one_error(
    server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = MlflowTracker(TrackingSpec(server.uri), StorageSpec(str(tmp_path)))
    run = tracker.start("torch", "train", identity="id-9", params={"a": "x" * 7_000})
    tracker.metrics(run, {"loss": 1.0}, 0)
    tracker.artifact_json(run, "records/science.json", {"a": 1})
    assert tracker.read_json(run, "records/science.json") == {"a": 1}
    tracker.finish(run)
    said: list[str] = []
    again = MlflowTracker(TrackingSpec(server.uri), StorageSpec(str(tmp_path)), said.append)
    found = again.find("id-9")
    assert found is not None
    assert found.run_id == run
    assert again.resume(run) is not None
    again.metrics(run, {"loss": 5.0}, 0)
    assert again.history(run, "loss") == ((0, 1.0),)
    assert again.ui_command == server.uri
    server.end()
    monkeypatch.setattr("crossmesh.track.mlflow.tracker._PATIENCE_S", 0.0)
    again.metrics(run, {"loss": 2.0}, 1)
    again.finish(run)
    (journal,) = tmp_path.glob("journal/*/*.jsonl")
    assert said[-1].startswith(f"MLflow, {server.uri}, does not take records: 2 of this job wait in {journal}.")
    with pytest.raises(Exception, match=f"at MLflow, {server.uri}: Connection refused. Start that server"):
        again.start("torch", "train")
