"""Jobs as a user starts them with `tracking.trackers=[none]`, where MLflow cannot be imported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_job import TINY

pytestmark = pytest.mark.integration

NONE = "tracking.trackers=[none]"


@pytest.fixture
def environment(clean_environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """One in which MLflow is installed and fails."""
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "__init__.py").write_text("raise RuntimeError('MLflow was imported')\n")
    return clean_environment | {"PYTHONPATH": str(tmp_path)}


def job(checkout: Path, environment: dict[str, str], verb: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(checkout / "jobs" / f"{verb}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)


def test_the_environment_has_no_mlflow(environment: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", "import mlflow"], capture_output=True, text=True, check=False, env=environment)
    assert "MLflow was imported" in done.stderr


def test_a_plan_without_mlflow(checkout: Path, environment: dict[str, str]) -> None:
    done = job(checkout, environment, "plan", "experiment=gemma4_31b_codev_v5p8_tp4", "plan.compile=never", NONE, "output=json")
    assert done.returncode == 0, done.stderr
    planned = json.loads(done.stdout.splitlines()[-1])
    assert planned["fits"]
    assert planned["run_id"] is None
    assert not list(Path(environment["CROSSMESH_STORAGE"]).rglob("mlflow.db"))


@pytest.mark.full
def test_a_training_without_mlflow_is_continued_by_its_checkpoint_and_its_run_is_not_found_by_id(
    checkout: Path, environment: dict[str, str]
) -> None:
    done = job(checkout, environment, "finetune", *TINY, "optim.steps=3", NONE)
    assert done.returncode == 0, done.stderr
    trained = json.loads(done.stdout.splitlines()[-1])
    assert (Path(trained["adapter"]) / "adapter_model.safetensors").is_file()
    assert not list(Path(environment["CROSSMESH_STORAGE"]).rglob("mlflow.db"))
    refused = job(checkout, environment, "finetune", *TINY, "optim.steps=3", NONE, f"checkpoint.resume_from={trained['run_id']}")
    assert refused.returncode == 2
    assert f"checkpoint.resume_from={trained['run_id']}: tracking.trackers=['none'] keeps no run after its job" in refused.stderr


@pytest.mark.parametrize(("verb", "arguments"), [("compare", ["runs=[1a2b3c4d,5e6f7a8b]"]), ("ui", [])])
def test_what_needs_an_earlier_run_or_mlflow_is_refused_by_name(
    checkout: Path, environment: dict[str, str], verb: str, arguments: list[str]
) -> None:
    done = job(checkout, environment, verb, *arguments, NONE)
    assert done.returncode == 2, done.stderr
    assert "tracking.trackers=['none']" in done.stderr
    assert "Traceback" not in done.stderr
