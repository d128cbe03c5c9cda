"""A run on two slices that loses one, goes on on the other, and takes it back: the same losses as if nothing had happened."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from emulated_cluster import EmulatedCluster, EmulatedNode, descendants, emulated_cluster, gpu_node, kill_node, tpu_nodes
from tiny_job import TINY

pytestmark = [pytest.mark.integration, pytest.mark.full, pytest.mark.timeout(1500)]

STEPS = 160
JOB = (
    *TINY,
    "tracking.system_metrics=false",
    "optim.learning_rate=1e-3",
    "mesh.dcn=2",
    f"optim.steps={STEPS}",
    "checkpoint.every_steps=10",
)
ELASTIC = ("mesh.min_dcn=1", "retry.resize_interval_s=5")
_PATIENCE_S = 600


def start(cluster: EmulatedCluster, checkout: Path, storage: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, str(checkout / "jobs" / "finetune.py"), *JOB, f"storage.root={storage}", *arguments]
    with storage.with_suffix(".log").open("a") as progress:
        environment = {**cluster.environment, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=progress, text=True, env=environment, start_new_session=True)


def finish(process: "subprocess.Popen[str]", storage: Path) -> list[dict[str, Any]]:
    """The steps of the run."""
    process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 0, storage.with_suffix(".log").read_text()
    found: list[dict[str, Any]] = json.loads(next(storage.glob("trials/*/result.json")).read_text())["history"]
    return found


def steps_of(storage: Path, missing: int) -> list[int]:
    """Steps that any attempt has taken without `missing` slices."""
    lines = [json.loads(line) for file in storage.glob("trials/*/attempts/*/events.jsonl") for line in file.read_text().splitlines()]
    return [line["step"] for line in lines if line["kind"] == "StepEvent" and line["missing_slices"] == missing]


def wait_for_step(storage: Path, missing: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while len(steps_of(storage, missing)) < 15:
        assert process.poll() is None, storage.with_suffix(".log").read_text()
        assert time.monotonic() < deadline, storage.with_suffix(".log").read_text()
        time.sleep(0.2)


@pytest.mark.parametrize(("backend", "hardware"), [("torch", "gpu_1xh100"), ("jax", "tpu_v5p_8")])
def test_a_lost_slice_is_gone_without_and_taken_back(backend: str, hardware: str, checkout: Path, tmp_path: Path) -> None:
    arguments = (f"backend={backend}", f"hardware={hardware}")
    killed, whole = tmp_path / "killed", tmp_path / "whole"

    def node(name: str) -> EmulatedNode:
        return gpu_node(hardware) if hardware.startswith("gpu") else tpu_nodes(hardware, name)[0]

    with emulated_cluster() as cluster:
        raylets = [cluster.add(node("slice-a")), cluster.add(node("slice-b"))]
        undisturbed = finish(start(cluster, checkout, whole, *arguments), whole)
        job = start(cluster, checkout, killed, *arguments, *ELASTIC)
        wait_for_step(killed, 0, job)
        trainers = [pid for pid in raylets if any("ray::fit" in command_of(child) for child in descendants(pid))]
        kill_node(next(pid for pid in raylets if pid not in trainers))
        wait_for_step(killed, 1, job)
        cluster.add(node("slice-c"))
        steps = finish(job, killed)

    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    changes = [
        now["missing_slices"]
        for now, before in zip(steps, [{}, *steps], strict=False)
        if now["missing_slices"] != before.get("missing_slices")
    ]
    assert changes == [0, 1, 0]
    losses = [[step["loss"] for step in run] for run in (steps, undisturbed)]
    assert max(abs(one - other) for one, other in zip(*losses, strict=True)) <= 1e-5
    assert losses[0][-1] < losses[0][0] - 0.1
    assert {step["missing_slices"] for step in undisturbed} == {0}
    told = killed.with_suffix(".log").read_text()
    assert "Training on 1 of 2 slices (mesh.min_dcn=1)." in told
    assert "2 of 2 slices are there: stopping after this step" in told
    assert "(1 retry left: retry.failures)" in told  # Being taken back is not a retry.


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
