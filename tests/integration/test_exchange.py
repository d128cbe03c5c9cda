"""`check=exchange` on real engines, and its proof in MLflow."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from crossmesh.adapters.proof import proof_of_run, read_proof
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec
from crossmesh.config.training import FAMILIES
from crossmesh.errors import InputError
from crossmesh.track.mlflow.tracker import MlflowTracker
from crossmesh.track.tracked_run import registered_name
from crossmesh.verify.exchange.proof import keep_proof
from crossmesh.verify.result import CheckResult, Limit

pytestmark = [pytest.mark.integration, pytest.mark.full]


def proof(worst: float) -> CheckResult:
    return CheckResult("exchange", (Limit("round_trip", worst, 0.0),), {"digests": {"base": "b", "adapter": "a" * 64, "result": "r"}})


def test_a_proof_is_on_disk_on_the_run_and_in_the_registry(tmp_path: Path) -> None:
    spec = ExperimentSpec(storage=StorageSpec(str(tmp_path / "storage")))
    tracker = MlflowTracker(spec.tracking, spec.storage)
    run_id = tracker.start("torch", "train")
    tracker.artifact_text(run_id, "adapter/adapter_config.json", "{}")
    assert proof_of_run(tracker.run(run_id), lambda: tracker, tmp_path / "cache") == ""
    kept = keep_proof(proof(1.0), tmp_path, run_id, spec)
    assert "registered" not in kept.figures
    assert tracker.run(run_id).tags["crossmesh.proof"] == "not passed"
    with pytest.raises(InputError, match="has not passed"):
        read_proof(str(tmp_path / "proof.json"), "a" * 64, force=False)

    kept = keep_proof(proof(0.0), tmp_path, run_id, spec)
    assert read_proof(str(tmp_path / "proof.json"), "a" * 64, force=False).passed
    assert tracker.read_json(run_id, "proof/proof.json")["passed"] is True
    fetched = proof_of_run(tracker.run(run_id), lambda: tracker, tmp_path / "cache")
    assert read_proof(fetched, "a" * 64, force=False).passed
    name = registered_name(spec.model.weights)
    assert kept.figures["registered"] == {"name": name, "version": "1", "run_id": run_id}
    version = tracker._client.get_model_version_by_alias(name, "proven")
    assert version.run_id == run_id
    assert version.source.endswith("/adapter")
    assert version.tags["proof"] == "passed"
    # Proven again it is the same version.
    assert keep_proof(proof(0.0), tmp_path, run_id, spec).figures["registered"]["version"] == "1"


@pytest.mark.timeout(900)
def test_a_users_model_is_proven_on_three_engines(checkout: Path, own_storage: Path, clean_environment: dict[str, str]) -> None:
    command = [sys.executable, "jobs/verify.py", "check=exchange", "model=tiny_gemma4", "output=json", f"storage.root={own_storage}"]
    patterns = ["lora.rank=4", "lora.alpha=4", "lora.use_rslora=true", "lora.rank_pattern={q_proj:8}"]
    done = subprocess.run([*command, *patterns], cwd=checkout, env=clean_environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
    record = json.loads(done.stdout.splitlines()[-1])
    assert record["passed"]
    assert record["figures"]["engines"] == ["vllm", "torch", "jax"]
    assert record["worst"]["round_trip"] == 0.0
    # Shared keys and values: the plain form is served wrong, which is why there is a serving form.
    assert record["worst"]["plain_form_still_wrong"] > 0.01
    (file,) = own_storage.glob("verify/exchange-*/proof.json")
    assert read_proof(str(file), record["figures"]["digests"]["adapter"], force=False).passed


@pytest.mark.timeout(1200)
def test_every_family_is_proven_on_three_engines(checkout: Path, own_storage: Path, clean_environment: dict[str, str]) -> None:
    command = [sys.executable, "jobs/verify.py", "check=exchange", "output=json", f"storage.root={own_storage}"]
    done = subprocess.run(command, cwd=checkout, env=clean_environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
    record = json.loads(done.stdout.splitlines()[-1])
    engines = {name: figures["engines"] for name, figures in record["figures"].items() if name.startswith("tiny_")}
    # vLLM's CPU build serves no adapters of a model with experts.
    assert engines == {name: ["torch", "jax"] if name.endswith("_moe") else ["vllm", "torch", "jax"] for name in engines}
    assert set(engines) >= {f"tiny_{family}" for family in FAMILIES.names}
    assert record["worst"]["round_trip"] == 0.0
