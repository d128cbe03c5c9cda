"""One random adapter on all seven targets of a tiny model means the same on Tunix, on transformers with PEFT, and on vLLM."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from crossmesh.adapters.initial import lora_names
from crossmesh.adapters.peft_format import write_adapter, write_serving_adapter
from crossmesh.models.families import read_architecture
from crossmesh.models.targets import expand_targets, hf_module_names
from crossmesh.models.weights import fetch_model
from crossmesh.spec.training import LORA_TARGETS, ModelSpec

pytestmark = pytest.mark.integration
RANK, ALPHA = 4, 8.0
_TORCH = {"OMP_NUM_THREADS": "1"}
_VLLM = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def run(part: str, folder: Path, checkout: Path, variables: dict[str, str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(checkout / "platform"), **variables}
    command = [sys.executable, str(Path(__file__).with_name("engine_parts.py")), part, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


OTHERS = ("gemma4_moe", "gemma4_e2b", "gemma3", "qwen2", "qwen3")


@pytest.fixture(scope="module", params=["gemma4", *(pytest.param(name, marks=pytest.mark.full) for name in OTHERS)])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, a random adapter as trained and as served, and prompts longer than the model's window of 16."""
    folder = tmp_path_factory.mktemp("engines")
    spec = ModelSpec(family=request.param.partition("_")[0], weights=f"random://tiny_{request.param}@0")
    model = fetch_model(spec, folder / "cache").path
    (folder / "model").symlink_to(model)
    architecture = read_architecture(model)
    targets = expand_targets(architecture, LORA_TARGETS)
    random = np.random.default_rng(1)
    arrays = {}
    for target in targets:
        name_a, name_b = lora_names(target.hf)
        arrays[name_a] = (random.normal(size=(RANK, target.in_features)) / np.sqrt(target.in_features)).astype(np.float32)
        arrays[name_b] = (random.normal(size=(target.out_features, RANK)) * 0.1).astype(np.float32)
    modules = hf_module_names(targets)
    write_adapter(folder / "adapter", arrays, rank=RANK, alpha=ALPHA, dropout=0.0, base_model=spec.weights, modules=modules)
    write_serving_adapter(folder / "adapter", folder / "served", architecture)
    np.save(folder / "prompts.npy", random.integers(5, architecture.vocab, (3, 24)).astype(np.int32))
    return folder


@pytest.mark.timeout(900)
def test_one_adapter_is_one_model_on_three_engines(folder: Path, checkout: Path) -> None:
    run("torch", folder, checkout, _TORCH)
    run("jax", folder, checkout, {"JAX_PLATFORMS": "cpu"})
    # With LoRA on, vLLM 0.32 computes experts by Triton alone, which its CPU build lacks: `engine_settings` refuses it, and the engine
    # dies with "AttributeError: module 'triton.language' has no attribute 'float32'".
    engines = ["jax"] if read_architecture(folder / "model").experts else ["jax", "vllm"]
    if "vllm" in engines:
        run("vllm", folder, checkout, _VLLM)
    logits = {name: np.load(folder / f"{name}_logits.npy") for name in ("base", "torch", "jax")}
    assert np.abs(logits["torch"] - logits["base"]).max() > 1.0, "the adapter changes too little to prove anything"
    assert np.abs(logits["torch"] - logits["jax"]).max() < 1e-4
    tokens = {name: np.load(folder / f"{name}_tokens.npy") for name in ("torch", *engines)}
    assert tokens["torch"].shape == (3, 32)
    assert len(np.unique(tokens["torch"])) > 20, "a model that repeats itself proves nothing"
    for engine in engines:
        np.testing.assert_array_equal(tokens[engine], tokens["torch"])
