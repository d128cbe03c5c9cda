"""The model family of `docs/extending.md`, added by a package: read, planned, and trained alike by both backends."""

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import FAMILIES, BackendSpec, LoraSpec, ModelSpec, OptimSpec
from crossmesh.errors import InputError
from crossmesh.files import write_json
from crossmesh.models.families.registry import families, parse_architecture, read_architecture
from crossmesh.models.weights.fetch import fetch_model
from crossmesh.models.weights.random_weights import architecture_config
from crossmesh.train.backend import TrainingSetup
from crossmesh.train.jax_backend import JaxBackend
from crossmesh.train.torch_backend import TorchBackend
from crossmesh.verify.exchange.check import tiny_models
from random_rows import rows, unpacked

pytestmark = pytest.mark.integration
CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package installed in this process and in those that it starts."""
    section = (CHECKOUT / "docs" / "extending.md").read_text(encoding="utf-8").partition("## A model family")[2]
    entry, module = (re.search(rf"```{kind}\n(.*?)```", section, re.DOTALL)[1] for kind in ("toml", "python"))
    metadata = tmp_path / "my_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    lines = entry.replace('[project.entry-points."crossmesh.families"]', "[crossmesh.families]").replace('"', "")
    (metadata / "entry_points.txt").write_text(lines)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").touch()
    (tmp_path / "my_package" / "seed_oss.py").write_text(module)
    config = architecture_config("tiny_qwen2") | {"model_type": "seed_oss", "architectures": ["SeedOssForCausalLM"], "head_dim": 32}
    config = {key: value for key, value in config.items() if key not in ("sliding_window", "use_sliding_window", "max_window_layers")}
    write_json(tmp_path / "my_package" / "tiny.json", config | {"attention_bias": True, "attention_dropout": 0.0, "residual_dropout": 0.0})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    _forget()
    yield tmp_path / "my_package"
    _forget()


def _forget() -> None:
    """What was looked up once in this process."""
    importlib.invalidate_caches()
    vars(FAMILIES).pop("_found", None)
    families.cache_clear()
    for name in ("my_package", "my_package.seed_oss"):
        sys.modules.pop(name, None)


def test_it_is_a_family_like_any_other(package: Path) -> None:
    assert FAMILIES.names[-1] == "seed_oss"
    model = parse_architecture(architecture_config("tiny_seed_oss"), "tiny")
    assert (model.family, model.layers[0].head_dim) == ("seed_oss", 32)
    assert parse_architecture(architecture_config("tiny_seed_oss") | {"head_dim": None}, "x").layers[0].head_dim == 128
    with pytest.raises(InputError, match="attention_bias=False is not supported"):
        parse_architecture(architecture_config("tiny_seed_oss") | {"attention_bias": False}, "x")
    assert tiny_models()["tiny_seed_oss"] == ModelSpec("seed_oss", "random://tiny_seed_oss@0")


def test_two_families_cannot_read_the_same_models(package: Path) -> None:
    module = package / "seed_oss.py"
    module.write_text(module.read_text().replace('model_types=("seed_oss",)', 'model_types=("qwen2",)'))
    with pytest.raises(InputError, match="The model families qwen2 and seed_oss both read model_type='qwen2'"):
        parse_architecture(architecture_config("tiny_llama"), "x")


@pytest.mark.full
def test_a_job_plans_it(package: Path, tmp_path: Path) -> None:
    arguments = [
        "model.family=seed_oss",
        "model.weights=random://tiny_seed_oss@0",
        "hardware=gpu_1xh100",
        f"storage.root={tmp_path / 'storage'}",
    ]
    command = [sys.executable, str(CHECKOUT / "jobs" / "plan.py"), *arguments, "output=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_both_backends_train_it_alike(package: Path, jax_cache: Path) -> None:
    model = fetch_model(ModelSpec("seed_oss", "random://tiny_seed_oss@0"), jax_cache).path
    assert read_architecture(model).family == "seed_oss"
    optim = OptimSpec(steps=2, learning_rate=5e-3, warmup_steps=1)
    spec = ExperimentSpec(
        model=ModelSpec("seed_oss", str(model)), lora=LoraSpec(rank=4), optim=optim, backend=BackendSpec(attention="plain")
    )
    setup = TrainingSetup.of(spec, model, jax_cache)
    torch, jax = TorchBackend(), JaxBackend()
    torch.init(setup)
    jax.init(setup)
    for seed in range(2):
        batch = unpacked(rows(4, seed), 2, 48)
        ours, theirs = jax.step(batch), torch.step(batch)
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-3)
