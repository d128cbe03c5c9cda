"""`ray job submit` to a cluster with token authentication: whose code runs, where results land, how a job ends and is stopped."""

import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emulated_cluster import EmulatedCluster, EmulatedNode, emulated_cluster
from tiny_job import TINY

pytestmark = [pytest.mark.integration, pytest.mark.full]

STEPS = 60
JOB = (*TINY, f"optim.steps={STEPS}", "checkpoint.every_steps=1000", "tracking.system_metrics=false")


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("submit") / "storage"


@pytest.fixture(scope="module")
def copy(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with another wording, in the driver and in the worker, than the one that is installed here."""
    folder = tmp_path_factory.mktemp("copy") / "crossmesh"
    for name in ("platform", "jobs", "conf"):
        shutil.copytree(checkout / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file, before, after in (
        ("train/attempt.py", '"starting Ray Train (', '"starting Ray Train of the copy ('),
        ("train/worker.py", '"reading the data"', '"reading the data of the copy"'),
    ):
        path = folder / "platform" / "crossmesh" / file
        text = path.read_text()
        assert text.count(before) == 1
        path.write_text(text.replace(before, after))
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmulatedCluster]:
    with emulated_cluster(dashboard=True) as started:
        for _ in range(8):  # Until the head's agent, which runs jobs, has told the dashboard that it is there.
            told, _ = ray(started, "submit", "--", "true").communicate(timeout=120)
            if "No available agent" not in told:
                break
        yield started


def ray(cluster: EmulatedCluster, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "ray.scripts.scripts", "job", *arguments]
    environment = {**cluster.environment, "RAY_ADDRESS": cluster.dashboard, "OMP_NUM_THREADS": "1"}
    del environment["PYTHONPATH"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def submit(cluster: EmulatedCluster, copy: Path, name: str, *arguments: str) -> "subprocess.Popen[str]":
    job = [sys.executable, "jobs/finetune.py", *arguments]
    return ray(cluster, "submit", "--working-dir", str(copy), "--submission-id", name, "--", *job)


def details(cluster: EmulatedCluster, name: str) -> dict[str, Any]:
    token = Path(cluster.variables["RAY_AUTH_TOKEN_PATH"]).read_text()
    request = urllib.request.Request(f"{cluster.dashboard}/api/jobs/{name}", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_a_typo_ends_the_job_with_our_exit_code_and_message(cluster: EmulatedCluster, copy: Path) -> None:
    process = submit(cluster, copy, "typo", "batch.micr=3")
    told, _ = process.communicate(timeout=180)
    assert process.returncode == 1  # Ray's own code for any job that failed; the job's own is in its record.
    assert "crossmesh: batch.micr=3: the key 'batch.micr' does not exist. Did you mean batch.micro?" in told
    assert (details(cluster, "typo")["status"], details(cluster, "typo")["driver_exit_code"]) == ("FAILED", 2)


def test_without_the_token_nothing_is_answered(cluster: EmulatedCluster) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{cluster.dashboard}/api/jobs/", timeout=30)


def test_the_submitted_code_runs_and_its_results_are_found_when_its_folder_is_gone(
    cluster: EmulatedCluster, copy: Path, storage: Path, checkout: Path, clean_environment: dict[str, str], tmp_path: Path
) -> None:
    copy = shutil.copytree(copy, tmp_path / "crossmesh")
    process = submit(cluster, copy, "whole", *JOB, f"storage.root={storage}")
    told, _ = process.communicate(timeout=400)
    assert process.returncode == 0, told
    assert "starting Ray Train of the copy (torch, cpu, 1 worker)" in told
    assert "reading the data of the copy" in told
    assert f"steps {STEPS}/{STEPS} loss" in told
    assert details(cluster, "whole")["driver_exit_code"] == 0
    whole = json.loads(next(line for line in told.splitlines() if line.startswith("{")))

    stopped = submit(cluster, copy, "stopped", *JOB, f"storage.root={storage}", "batch.micro=1")
    attempt = wait_for_step(storage, 5, exclude=Path(whole["adapter"]).parent)
    stop = ray(cluster, "stop", "stopped")
    assert stop.wait(timeout=200) == 0
    told, _ = stopped.communicate(timeout=60)
    assert details(cluster, "stopped")["status"] == "STOPPED"
    assert "stopping after this step, with a checkpoint" in told
    kept = sorted((attempt.parents[1] / "checkpoints").glob("step-*"))
    assert len(kept) == 1
    step = int(kept[0].name.removeprefix("step-"))
    assert 5 <= step < STEPS

    shutil.rmtree(copy)
    command = [sys.executable, str(checkout / "jobs" / "finetune.py"), *JOB, f"storage.root={storage}", "batch.micro=1"]
    again = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=cluster.environment)
    assert again.returncode == 0, again.stderr
    assert f"continuing after step {step} of {STEPS}" in again.stderr
    resumed = json.loads(again.stdout.splitlines()[-1])

    command = [sys.executable, str(checkout / "jobs" / "compare.py"), f"storage.root={storage}", "output=json"]
    command.append(f"runs=[{whole['run_id']},{resumed['run_id']}]")
    compared = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=clean_environment)
    verdict = json.loads(compared.stdout.splitlines()[-1])
    assert verdict["comparable"]
    assert [one["key"] for one in verdict["differences"] if one["scope"] == "system"] == ["batch_micro"]
    losses = [variant["losses"] for variant in verdict["variants"].values()]
    assert [step for step, _ in losses[0]] == [step for step, _ in losses[1]] == list(range(1, STEPS + 1))
    assert max(abs(one - other) for (_, one), (_, other) in zip(*losses, strict=True)) < 1e-4


def wait_for_step(storage: Path, step: int, exclude: Path) -> Path:
    """The folder of the attempt that has taken so many steps, as soon as it has."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        for events in storage.glob("trials/*/attempts/*/events.jsonl"):
            lines = events.read_text().splitlines()
            if exclude not in events.parents and sum('"StepEvent"' in line for line in lines) >= step:
                return events.parent
        time.sleep(0.2)
    raise AssertionError(sorted(storage.glob("trials/*")))


def test_the_doctor_looks_at_the_cluster_that_it_is_submitted_to(cluster: EmulatedCluster, copy: Path, storage: Path) -> None:
    """Last: the cluster has one more node from here on."""
    cluster.add(EmulatedNode({"other": 1}, num_cpus=3))
    command = [sys.executable, "jobs/doctor.py", f"storage.root={storage}", "output=json", "node_timeout_s=240"]
    told, _ = ray(cluster, "submit", "--working-dir", str(copy), "--", *command).communicate(timeout=400)
    assert '{"findings"' in told, told
    found, _ = json.JSONDecoder().raw_decode(told, told.index('{"findings"'))  # Progress may stand before it on its line.
    (node,) = found["nodes"]
    assert "(3 CPUs)" in node["title"]
    rows = {one["name"]: one for one in node["findings"]}
    assert rows["storage, shared"]["status"] == rows["clock, skew"]["status"] == "ok"
    assert "looking at 1 node of the cluster" in told
