"""An objective of another package: the same on both backends, another than plain fine-tuning, and science of the trials that have it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.objective import ObjectiveSpec
from crossmesh.config.training import BackendSpec, LoraSpec, OptimSpec
from crossmesh.train.backend import TrainingSetup
from crossmesh.train.jax_backend import JaxBackend
from crossmesh.train.torch_backend import TorchBackend
from objective_package import install, write_package
from random_rows import ragged, rows, unpacked
from tiny_job import TINY

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("probed_model", ["gemma4"], indirect=True)  # It caps its logits.
def test_an_objective_learns_the_same_on_both_backends(
    probed_model: Path, jax_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch)
    spec = ExperimentSpec(
        lora=LoraSpec(rank=4, alpha=8.0),
        optim=OptimSpec(steps=4, learning_rate=5e-3, warmup_steps=1),
        backend=BackendSpec(attention="plain"),
        objective=ObjectiveSpec("z_loss", {"coefficient": 0.2}),
    )
    setup = replace(TrainingSetup.of(spec, probed_model, jax_cache), accumulation=2)
    torch, jax, plain = TorchBackend(), JaxBackend(), TorchBackend()
    torch.init(setup)
    jax.init(setup)
    plain.init(replace(setup, objective=ObjectiveSpec()))
    for batch in [*(unpacked(rows(4, seed), 2, 48) for seed in range(2)), ragged(rows(4, 2), 2, 8)]:
        ours, theirs, without = jax.step(batch), torch.step(batch), plain.step(batch)
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-3)
        assert ours.objective["nll"] == pytest.approx(theirs.objective["nll"], rel=1e-5)
        assert ours.loss > ours.objective["nll"] + 0.1
        assert without.objective == {}
    ours, theirs = jax.evaluate(batch), torch.evaluate(batch)
    assert (ours.loss, ours.objective["nll"]) == pytest.approx((theirs.loss, theirs.objective["nll"]), rel=1e-5)
    trained, other = torch.export(), plain.export()
    assert max(float(np.abs(array - other[name]).max()) for name, array in trained.items()) > 1e-3


@pytest.mark.full
def test_a_job_trains_by_it(tmp_path: Path) -> None:
    arguments = ["objective.name=z_loss", "objective.options={coefficient: 0.2}", "backend=torch", "optim.steps=2", "lora.rank=4"]
    environment = {**os.environ, "CROSSMESH_STORAGE": str(tmp_path / "storage"), "PYTHONPATH": str(write_package(tmp_path / "package"))}
    job = Path(__file__).resolve().parents[2] / "jobs" / "finetune.py"
    command = [sys.executable, job, *TINY, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    adapter = Path(json.loads(done.stdout.splitlines()[-1])["adapter"])
    history = json.loads((adapter.parent / "result.json").read_text())["history"]
    assert [step["loss"] > step["objective"]["nll"] for step in history] == [True, True]
