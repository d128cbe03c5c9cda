"""The checks on real engines, as small as they get: they pass on what is right and fail on what is not."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec
from crossmesh.config.training import ModelSpec
from crossmesh.console import Console
from crossmesh.data.batches import PackedBatch
from crossmesh.models.weights.fetch import fetch_model
from crossmesh.train.backend import StepMetrics
from crossmesh.train.torch_backend import TorchBackend
from crossmesh.verify.adapters.check import AdapterSizes, verify_adapters
from crossmesh.verify.loss_head.check import HeadSizes, verify_loss_head
from crossmesh.verify.packing import exact as packing_exact
from crossmesh.verify.unlike.check import verify_unlike

pytestmark = [pytest.mark.integration, pytest.mark.full]


def test_the_job_proves_parity_of_a_tiny_model(checkout: Path, tmp_path: Path, clean_environment: dict[str, str]) -> None:
    arguments = ["check=training_parity", "model=tiny_gemma4", "optim.steps=6", "lora.rank=4", f"storage.root={tmp_path}", "output=json"]
    command = [sys.executable, str(checkout / "jobs" / "verify.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean_environment, timeout=500)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout.splitlines()[-1])
    assert record["passed"] is True
    assert record["worst"]["gemma4.loss_difference"] < 1e-4
    assert record["figures"]["gemma4"]["modules"]["jax"] == record["figures"]["gemma4"]["modules"]["torch"]
    assert record["figures"]["gemma4"]["modules"]["jax"]["global k"] == 1
    assert len(record["figures"]["gemma4"]["loss_difference"]) == 6


def test_the_loss_heads_agree_at_a_small_vocabulary(tmp_path: Path) -> None:
    sizes = HeadSizes(vocab=8192, hidden=64, memory_rows=4096, time_rows=256, rounds=2)
    result = verify_loss_head(ExperimentSpec(storage=StorageSpec(str(tmp_path))), tmp_path / "check", Console(), sizes)
    kept = {limit.name: limit for limit in result.limits}
    assert kept["gradient_difference"].passed
    assert kept["loss_difference"].passed
    assert kept["temporary_bytes_ratio"].passed  # The time ratio is nothing to assert at this size.
    assert result.figures["torch"]["gradient_difference"] < 1e-5


def test_adapters_of_one_engine_answer_as_alone(tmp_path: Path) -> None:
    spec = ExperimentSpec(model=ModelSpec(weights="random://tiny_llama@1"), storage=StorageSpec(str(tmp_path)))
    sizes = AdapterSizes(adapters=3, rank=16, requests=3, prompt=16, tokens=8, rounds=2)
    result = verify_adapters(spec, tmp_path / "check", Console(), sizes)
    kept = {limit.name: limit for limit in result.limits}
    assert kept["answers_unlike_alone"].passed
    assert kept["answers_like_another_model"].passed  # The ratio is nothing to assert at this size.


class LeakyBackend(TorchBackend):
    """Forgets which row a token belongs to."""

    def evaluate(self, batch: PackedBatch) -> StepMetrics:
        return super().evaluate(replace(batch, segment_ids=(batch.segment_ids > 0).astype(np.int32)))


@pytest.mark.parametrize(("backend", "exact"), [(TorchBackend, True), (LeakyBackend, False)])
def test_packing_that_mixes_rows_is_found_on_a_real_model(
    backend: type[TorchBackend], exact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fetch_model(ModelSpec("gemma4", "random://tiny_gemma4@0"), tmp_path)
    monkeypatch.setattr(packing_exact, "make_backend", lambda spec: backend())
    found: dict[str, Any] = packing_exact.exactness("torch", model.path, tmp_path)
    assert (found["difference"] < 1e-5) is exact
    assert found["difference_when_rows_mix"] > 1e-2


def test_nothing_unlike_passes_and_nothing_alike_is_refused(tmp_path: Path) -> None:
    result = verify_unlike(ExperimentSpec(storage=StorageSpec(str(tmp_path))), tmp_path / "check", Console())
    rows = {name: row for name, row in result.figures.items() if isinstance(row, dict)}
    assert len(rows) == 19
    assert {name for name, row in rows.items() if row["verdict"] == "NOT PASSED"} == set()
    assert result.passed
