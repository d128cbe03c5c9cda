"""jobs/plan.py as a user runs it: a calibrated sweep in MLflow, Ctrl-C in the middle, and jobs that the plan refuses before they start."""

import json
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from crossmesh.config.compose import compose_spec
from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.track.tracker import Tracker
from crossmesh.track.trackers import open_tracker

pytestmark = [pytest.mark.integration, pytest.mark.full]

PAPER = "experiment=gemma4_31b_codev_v5p8_tp4"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plan") / "storage"


@pytest.fixture(scope="module")
def tracker(storage: Path, checkout: Path) -> Tracker:
    """Has three finished runs of the paper's experiment: 8 rows of 922 tokens a step, packed into 3 sequences, at 4,000 tokens a second."""
    tracker = open_tracker(TrackingSpec(), StorageSpec(str(storage)))
    spec = compose_spec(checkout / "conf", PAPER)
    efficiency = 8 * 922 / (3 * spec.sequence_length)
    totals = {"tokens": spec.optim.steps * 8 * 922.0, "tokens_per_s_steady": 4000.0, "packing_efficiency": efficiency}
    for _ in range(3):
        run = tracker.start("jax", "train", params=spec)
        tracker.artifact_json(run, "records/spec.json", asdict(spec))
        tracker.artifact_json(run, "records/system.json", {})
        tracker.metrics(run, {f"train/{name}": value for name, value in totals.items()}, spec.optim.steps)
        tracker.finish(run)
    return tracker


def command(checkout: Path, job: str, storage: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(checkout / "jobs" / f"{job}.py"), *arguments, f"storage.root={storage}"]


def run(command: list[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=environment)


def test_a_sweep_is_calibrated_and_logged(checkout: Path, storage: Path, tracker: Tracker, clean_environment: dict[str, str]) -> None:
    swept = ("-m", PAPER, "hardware=tpu_v5p_8,gpu_2xh100", "mesh.fsdp=-1", "mesh.tp=1,2", "plan.compile=never", "output=json")
    done = run(command(checkout, "plan", storage, *swept), clean_environment)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    on_tpu = [one for one in said["points"] if one["hardware"] == "tpu_v5p_8"]
    assert len(said["points"]) == 4
    assert [len(one["calibration"]["runs"]) for one in on_tpu] == [3, 3]
    assert all(one["calibration"] is None for one in said["points"] if one not in on_tpu)
    factor = on_tpu[0]["calibration"]["factor"]
    assert on_tpu[0]["step_seconds"] == pytest.approx(factor * sum(on_tpu[0]["phases"].values()))
    assert any("the median of 3 own runs" in note for note in said["notes"])
    assert "points 4/4" in done.stderr
    parent = tracker.run(said["run_id"])
    assert (parent.status, parent.tags["crossmesh.kind"], parent.metrics["plan/points"]) == ("FINISHED", "plan", 4.0)
    children = {one.name: one for one in tracker.children(said["run_id"])}
    assert set(children) == {one["label"] for one in said["points"]}
    best = said["pareto"][0]
    assert children[best].tags["crossmesh.pareto"] == "true"
    assert children[best].metrics["plan/usd"] == pytest.approx(next(one["usd"] for one in said["points"] if one["label"] == best))
    assert len(tracker.read_json(said["run_id"], "plan/plan.json")["points"]) == 4

    alone = run(command(checkout, "plan", storage, PAPER, "plan.compile=never", "plan.calibrate=false", "output=json"), clean_environment)
    one = json.loads(alone.stdout.splitlines()[-1])
    assert (one["calibration"], one["step_source"]) == (None, "modelled")
    assert tracker.run(one["run_id"]).metrics["plan/step_seconds"] == pytest.approx(one["step_seconds"])


def test_ctrl_c_in_a_sweep_shows_what_is_planned(checkout: Path, storage: Path, clean_environment: dict[str, str]) -> None:
    swept = ("-m", PAPER, "mesh.fsdp=-1", "mesh.tp=1,2,4", "packing.length=4096,8192", "batch.micro=1,2,4,8", "plan.compile=never")
    typed = command(checkout, "plan", storage, *swept, "output=json")
    process = subprocess.Popen(typed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment)
    assert process.stderr is not None
    assert any("points 1/24" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    said = json.loads(out.splitlines()[-1])
    points = said.get("points", [said])
    assert 1 <= len(points) < 24
    assert any(note.startswith(f"Interrupted: {len(points)} of 24 points are planned") for note in said["notes"])


@pytest.mark.parametrize(
    ("job", "arguments", "named"),
    [
        ("plan", (PAPER, "hardware=tpu_v6e_8", "mesh.fsdp=1", "mesh.tp=8", "plan.compile=never"), "layers.5.attn.k_einsum.w"),
        ("finetune", (PAPER, "hardware=tpu_v6e_8", "mesh.fsdp=1", "mesh.tp=8"), "layers.5.attn.k_einsum.w"),
        ("finetune", (PAPER, "plan.max_usd=1"), "more than plan.max_usd=1"),
        ("serve", ("experiment=gemma4_31b_serve_v6e8_tp8", "serve.tp=1"), "weights"),
        ("pipeline", ("experiment=demo", "model=qwen2_5_0_5b", "serve.tp=3"), "14 attention heads, which serve.tp=3 does not divide"),
    ],
)
def test_what_the_plan_refuses_ends_with_3_and_starts_nothing(
    job: str, arguments: tuple[str, ...], named: str, checkout: Path, tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    done = run(command(checkout, job, tmp_path, *arguments), clean_environment)
    assert done.returncode == 3, done.stderr
    assert named in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "Ray" not in done.stderr
    assert not (tmp_path / "cache" / "models").exists()
