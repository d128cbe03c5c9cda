"""A sweep over TPU and GPU nodes at once, as a user runs it: killed, stopped by its budget, and run again until it is done, once."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.sweep.state import read_state
from crossmesh.track.tracked_run import TAG_KIND
from crossmesh.track.trackers import open_tracker
from emulated_cluster import EmulatedCluster, emulated_cluster, gpu_node, tpu_nodes
from tiny_job import TINY

pytestmark = [pytest.mark.integration, pytest.mark.full, pytest.mark.timeout(2400)]

STEPS = 50
SWEEP = (
    "-m",
    *TINY,
    "model.dtype=bfloat16",
    "batch.micro=1,2,16",
    "hardware=tpu_v5p_8,gpu_2xh100",
    f"optim.steps={STEPS}",
    "checkpoint.every_steps=10",
    "hydra/launcher=ray",
)
"""Six points, of which two have micro-batches that their batch does not divide into."""


def start(cluster: EmulatedCluster, checkout: Path, storage: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, str(checkout / "jobs" / "finetune.py"), *SWEEP, f"storage.root={storage}", *arguments]
    environment = {**cluster.environment, "OMP_NUM_THREADS": "1"}
    with storage.with_suffix(".log").open("a") as progress:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=progress, text=True, env=environment, start_new_session=True)


def finish(process: "subprocess.Popen[str]", storage: Path, code: int) -> dict[str, Any]:
    out, _ = process.communicate(timeout=900)
    assert process.returncode == code, storage.with_suffix(".log").read_text()
    said: dict[str, Any] = json.loads(out.splitlines()[-1])
    return said


def status(checkout: Path, storage: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(checkout / "jobs" / "status.py"), f"storage.root={storage}", "output=json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def wait_for(storage: Path, pattern: str, count: int) -> None:
    deadline = time.monotonic() + 240
    while len(list(storage.glob(pattern))) < count:
        assert time.monotonic() < deadline, storage.with_suffix(".log").read_text()
        time.sleep(0.2)


def test_a_sweep_survives_kill_and_budget_and_has_every_trial_once(checkout: Path, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    folder = storage / "sweeps"
    with emulated_cluster(*tpu_nodes("tpu_v5p_8", "slice-a"), gpu_node("gpu_2xh100")) as cluster:
        first = start(cluster, checkout, storage)
        wait_for(storage, "trials/*/checkpoints/step-*", 1)
        at_once = read_state(next(folder.iterdir()))
        running = status(checkout, storage)
        os.kill(first.pid, signal.SIGKILL)
        first.communicate(timeout=60)
        assert running["alive"]
        assert at_once is not None
        assert at_once.counts() == {"running": 2, "waiting": 2, "rejected": 2}  # One on the slice and one on the GPUs.

        left = read_state(next(folder.iterdir()))
        assert left is not None
        spent = left.spent.hours  # Emulated devices have no price.
        assert spent > 0
        stopped = finish(start(cluster, checkout, storage, f"sweep.max_hours={spent + 0.01}"), storage, 4)
        assert stopped["sweep"] == running["sweep"]
        assert stopped["stopped"] > 0
        assert spent + 0.01 <= stopped["hours"] < spent + 0.06
        assert stopped["done"] + stopped["skipped"] + stopped["stopped"] == 4

        done = finish(start(cluster, checkout, storage), storage, 2)
        assert (done["done"] + done["skipped"], done["rejected"], done["sweep"]) == (4, 2, running["sweep"])
        assert "Allowed: batch.micro one of [1, 2, 4]" in " ".join(one["reason"] for one in done["points"])
        free = cluster.state()["free"]
        assert (free["TPU"], free["GPU"]) == (4.0, 2.0)

    tracker = open_tracker(TrackingSpec(), StorageSpec(str(storage)))
    runs = tracker.matching("")
    assert Counter((run.tags[TAG_KIND], run.status) for run in runs) == {
        ("sweep", "FINISHED"): 1,
        ("train", "FINISHED"): 4,
        ("rejected", "KILLED"): 2,
    }
    assert {run.run_id for run in tracker.children(done["sweep"])} == {run.run_id for run in runs if run.tags[TAG_KIND] != "sweep"}
    for run in runs:
        if run.tags[TAG_KIND] == "train":
            for key in ("train/loss", "train/tokens"):
                assert [step for step, _ in tracker.history(run.run_id, key)] == list(range(1, STEPS + 1))
    elsewhere = status(checkout, tmp_path / "elsewhere", f"tracking.uri=sqlite:///{storage}/mlflow.db")
    assert (elsewhere["sweep"], elsewhere["done"] + elsewhere["skipped"], elsewhere["alive"]) == (done["sweep"], 4, False)
