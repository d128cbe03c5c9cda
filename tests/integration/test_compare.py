"""jobs/compare.py: stored runs side by side, from their records and metrics alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from crossmesh.errors import InputError
from crossmesh.report.stored import stored_variant
from crossmesh.spec.services import StorageSpec, TrackingSpec
from crossmesh.track.tracker import Tracker

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compare") / "storage"


@pytest.fixture(scope="module")
def runs(storage: Path) -> dict[str, str]:
    """Two runs of one science, one of another, and one that did not finish."""
    tracker = Tracker(TrackingSpec(), StorageSpec(str(storage)))
    made = {}
    for name, rank, loss in (("torch", 8, 1.5), ("jax", 8, 1.25), ("other", 16, 1.0), ("half", 8, None)):
        run = tracker.start(name, "train")
        tracker.records(run, {"lora": {"rank": rank}}, {"backend": name})
        tracker.artifact_json(run, "records/provenance.json", {"python": "3.11"})
        tracker.metrics(run, {"train/loss": 2.0}, 1)
        if loss is not None:
            tracker.metrics(run, {"train/loss": loss}, 2)
            totals = {"final_loss": loss, "tokens_per_s_steady": 100.0, "seconds": 4.0, "tokens": 400, "loss_tokens": 60}
            tracker.metrics(run, {f"train/{key}": value for key, value in totals.items()}, 2)
        tracker.finish(run, "FAILED" if loss is None else "FINISHED")
        made[name] = run
    return made


def compare(checkout: Path, storage: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(checkout / "jobs" / "compare.py"), f"storage.root={storage}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_runs_of_one_science_are_compared_with_their_losses(checkout: Path, storage: Path, runs: dict[str, str]) -> None:
    done = compare(checkout, storage, f"runs=[{runs['torch']},{runs['jax']}]", "output=json")
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert (said["comparable_quality"], said["comparable_speed"]) == (True, True)
    assert [(one["scope"], one["key"]) for one in said["differences"]] == [("system", "backend")]
    variants = {variant["backend"]: variant for variant in said["variants"].values()}
    assert variants["torch"]["losses"] == [[1, 2.0], [2, 1.5]]
    assert (variants["jax"]["final_loss"], variants["jax"]["tokens_per_s"], variants["jax"]["tokens"]) == (1.25, 100.0, 400)
    assert variants["jax"]["run_id"] == runs["jax"]


def test_another_science_is_named_and_not_compared(checkout: Path, storage: Path, runs: dict[str, str]) -> None:
    done = compare(checkout, storage, f"runs=[{runs['torch'][:31]},{runs['other']}]")
    assert done.returncode == 0, done.stderr
    assert "not comparable" in done.stdout.lower()
    assert "science.lora.rank" in done.stdout


def test_one_run_alone_is_the_users_error(checkout: Path, storage: Path, runs: dict[str, str]) -> None:
    done = compare(checkout, storage, f"runs=[{runs['torch']},{runs['torch']}]")
    assert done.returncode == 2
    assert "two or more different MLflow run ids" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [("zz", "runs='zz': no run of sqlite"), ("half", r"\(half, FAILED\), no finished training"), ("", "begins the ids of 4 runs")],
)
def test_what_names_no_training_run_is_one_message(storage: Path, runs: dict[str, str], given: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        stored_variant(Tracker(TrackingSpec(), StorageSpec(str(storage))), runs.get(given, given))
