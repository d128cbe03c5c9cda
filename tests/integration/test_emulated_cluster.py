"""Training on clusters of several nodes, emulated on this machine: placement, failed starts, dead nodes."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emulated_cluster import EmulatedCluster, descendants, emulated_cluster, gpu_node, kill_node, tpu_nodes
from tiny_job import TINY

pytestmark = [pytest.mark.integration, pytest.mark.full, pytest.mark.timeout(1500)]

JOB = (*TINY, "tracking.system_metrics=false")
_PATIENCE_S = 480
"""Four workers of two jobs import JAX and torch at once: minutes on two cores that others use too."""


def start(cluster: EmulatedCluster, checkout: Path, storage: Path, *arguments: str) -> "subprocess.Popen[str]":
    """The job as a user would start it, on the cluster; its progress goes to a file beside the storage."""
    command = [sys.executable, str(checkout / "jobs" / "finetune.py"), *JOB, f"storage.root={storage}", *arguments]
    with storage.with_suffix(".log").open("a") as progress:
        environment = {**cluster.environment, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=progress, text=True, env=environment, start_new_session=True)


def finish(process: "subprocess.Popen[str]", storage: Path) -> dict[str, Any]:
    out, _ = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 0, storage.with_suffix(".log").read_text()
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def wait_for(storage: Path, pattern: str, count: int = 1) -> list[Path]:
    """Files of the storage that match, as soon as there are so many."""
    deadline = time.monotonic() + _PATIENCE_S
    while len(found := sorted(storage.glob(pattern))) < count:
        assert time.monotonic() < deadline, storage.with_suffix(".log").read_text()
        time.sleep(0.2)
    return found


def history(storage: Path) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = json.loads(wait_for(storage, "trials/*/result.json")[0].read_text())["history"]
    return steps


@pytest.fixture(scope="module")
def mixed() -> Iterator[EmulatedCluster]:
    with emulated_cluster(*tpu_nodes("tpu_v5p_16", "slice-a"), gpu_node("gpu_2xh100")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def flawed() -> Iterator[EmulatedCluster]:
    """A slice whose hosts do not know its name, so that Ray Train cannot start on it."""
    with emulated_cluster(*tpu_nodes("tpu_v5p_16", "slice-a", named=False)) as cluster:
        yield cluster


def test_a_slice_and_gpus_train_at_the_same_time_each_worker_in_its_place(mixed: EmulatedCluster, checkout: Path, tmp_path: Path) -> None:
    storages = {hardware: tmp_path / hardware for hardware in ("tpu_v5p_16", "gpu_2xh100")}
    jobs = {hardware: start(mixed, checkout, storage, f"hardware={hardware}", "optim.steps=25") for hardware, storage in storages.items()}
    ranks = {hardware: wait_for(storage, "trials/*/attempts/*/ranks/*.json", 2) for hardware, storage in storages.items()}
    assert all(job.poll() is None for job in jobs.values()), "one had ended before the other had its workers"

    nodes = mixed.state()["nodes"]
    labels, chips = {}, {}
    for hardware, files in ranks.items():
        told = [json.loads(file.read_text()) for file in files]
        chips[hardware] = [entry["accelerators"] for entry in told]
        assert [entry["world"] for entry in told] == [2, 2]
        labels[hardware] = [nodes[entry["node"]]["labels"] for entry in told]
    assert chips["tpu_v5p_16"] == [{"TPU": ["0", "1", "2", "3"]}] * 2
    assert chips["gpu_2xh100"] == [{"GPU": ["0"]}, {"GPU": ["1"]}]
    assert {entry["ray.io/tpu-worker-id"] for entry in labels["tpu_v5p_16"]} == {"0", "1"}
    assert {entry["ray.io/tpu-slice-name"] for entry in labels["tpu_v5p_16"]} == {"slice-a"}
    assert [entry["ray.io/accelerator-type"] for entry in labels["gpu_2xh100"]] == ["H100", "H100"]

    results = {hardware: finish(job, storages[hardware]) for hardware, job in jobs.items()}
    assert len({result["science_fingerprint"] for result in results.values()}) == 1
    assert len({result["system_fingerprint"] for result in results.values()}) == 2
    # JAX in 2 processes of 4 devices and torch in 2 ranks, from the same start.
    losses = [[step["loss"] for step in history(storage)] for storage in storages.values()]
    assert max(abs(tpu - gpu) / gpu for tpu, gpu in zip(*losses, strict=True)) < 1e-3
    assert losses[0][-1] < losses[0][0] - 0.5
    # What outlives a run is on the head: an autoscaler takes no node away on which an actor is.
    (coordinator,) = mixed.state()["actors"]["_AutoscalingCoordinatorActor"]
    assert "ray.io/accelerator-type" not in coordinator
    assert mixed.state()["free"] | {"TPU": 8.0, "GPU": 2.0, "TPU-v5p-16-head": 1.0} == mixed.state()["free"]


def test_a_slice_is_free_again_after_a_start_that_failed(flawed: EmulatedCluster, checkout: Path, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    job = start(flawed, checkout, storage, "hardware=tpu_v5p_16", "retry.failures=1")
    job.communicate(timeout=_PATIENCE_S)
    told = storage.with_suffix(".log").read_text()
    assert job.returncode == 1
    # Both attempts got the head of the slice and failed at its name; with the first one's reservation left, the second would wait for it.
    assert "the workers could not be started. It is started again from its checkpoint (0 retries left: retry.failures)" in told
    assert "crossmesh: The training workers could not be started: " in told
    assert "Failed to retrieve TPU slice name" in told.splitlines()[-1]
    free = flawed.state()["free"]
    assert (free["TPU"], free["TPU-v5p-16-head"]) == (8.0, 1.0)


def test_a_run_whose_node_was_killed_goes_on_when_it_is_back(checkout: Path, tmp_path: Path) -> None:
    """Two GPU nodes of one rank each: the rank that is left fails in a collective, before Ray knows that the other's node is gone."""
    arguments = ("hardware=gpu_1xh100", "mesh.dcn=2", "optim.steps=50", "checkpoint.every_steps=10")
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    with emulated_cluster() as cluster:
        raylets = [cluster.add(gpu_node("gpu_1xh100")) for _ in range(2)]
        job = start(cluster, checkout, killed, *arguments)
        wait_for(killed, "trials/*/checkpoints/step-*")
        trainers = [pid for pid in raylets if any("ray::fit" in command_of(child) for child in descendants(pid))]
        assert len(trainers) == 1
        kill_node(next(pid for pid in raylets if pid not in trainers))
        wait_for(killed, "trials/*/attempts/*", 2)
        cluster.add(gpu_node("gpu_1xh100"))
        assert finish(job, killed)["already_done"] is False
        finish(start(cluster, checkout, whole, *arguments), whole)
    told = killed.with_suffix(".log").read_text()
    assert re.search(r"a (node|worker) died\. It is started again from its checkpoint \(1 retry left: retry\.failures\)", told)
    steps = history(killed)
    assert [step["step"] for step in steps] == list(range(1, 51))
    assert [step["step"] % 10 for step in steps if step["first"]] == [1, 1]  # From the start, and from the step after a checkpoint.
    assert [step["loss"] for step in steps] == [step["loss"] for step in history(whole)]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
