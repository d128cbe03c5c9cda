"""Training state of either backend becomes a PEFT folder, and training goes on from it on either backend, from the same bits.

The adapter is as unlike the default as PEFT allows: rank-stabilised, with ranks and alphas by module.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from crossmesh.adapters.init_adapter import adapted_modules
from crossmesh.adapters.initial import FloatArray
from crossmesh.adapters.peft_config import AdapterConfig
from crossmesh.adapters.peft_format import read_adapter, store_adapter
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import BackendSpec, LoraSpec, OptimSpec
from crossmesh.data.batches import PackedBatch
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.torch.hf_torch import hidden_states, logits, model_inputs
from crossmesh.train.backend import Backend, TrainingSetup
from crossmesh.train.jax_backend import JaxBackend
from crossmesh.train.torch_backend import TorchBackend
from random_rows import rows, unpacked

pytestmark = [pytest.mark.integration, pytest.mark.full]
LORA = LoraSpec(
    rank=4,
    alpha=6.0,
    use_rslora=True,
    rank_pattern={r"layers\.0\..*q_proj": 2, "o_proj": 7},
    alpha_pattern={"down_proj": 1.5},
)
BACKENDS: dict[str, type[Backend]] = {"jax": JaxBackend, "torch": TorchBackend}


def batch() -> PackedBatch:
    return unpacked(rows(4), 4, 48)


def started(backend: str, model: Path, cache: Path, init_adapter: Path | None = None) -> Backend:
    lora = LORA if init_adapter is None else LoraSpec(adapter=str(init_adapter))
    spec = ExperimentSpec(lora=lora, optim=OptimSpec(steps=20, learning_rate=1e-2, weight_decay=0.01), backend=BackendSpec(backend))
    made = BACKENDS[backend]()
    made.init(TrainingSetup.of(spec, model, cache, init_adapter))
    return made


def bits(arrays: dict[str, FloatArray]) -> dict[str, tuple[tuple[int, ...], bytes]]:
    return {name: (array.shape, np.ascontiguousarray(array).tobytes()) for name, array in arrays.items()}


def test_one_adapter_goes_round_all_backends_bit_by_bit(probed_model: Path, jax_cache: Path, tmp_path: Path) -> None:
    architecture = read_architecture(probed_model)
    first = {name: started(name, probed_model, jax_cache) for name in BACKENDS}
    assert bits(first["jax"].export()) == bits(first["torch"].export())
    losses = {name: [backend.step(batch()).loss for _ in range(3)] for name, backend in first.items()}
    assert losses["jax"] == pytest.approx(losses["torch"], rel=1e-4)
    assert losses["jax"][2] < losses["jax"][0]

    # Through Orbax, as an interrupted run would.
    (tmp_path / "state").mkdir()
    first["jax"].save_state(tmp_path / "state")()
    trained = first["jax"].export()
    again = started("jax", probed_model, jax_cache)
    again.load_state(tmp_path / "state")
    assert bits(again.export()) == bits(trained)

    modules = adapted_modules(LORA, None, architecture)
    store_adapter(tmp_path / "peft", trained, AdapterConfig.of(modules, 0.0, "base"), "b" * 64)
    assert bits(read_adapter(tmp_path / "peft")[0]) == bits(trained)
    assert adapted_modules(LoraSpec(), tmp_path / "peft", architecture) == modules
    going_on = {name: started(name, probed_model, jax_cache, tmp_path / "peft") for name in BACKENDS}
    for backend in going_on.values():
        assert bits(backend.export()) == bits(trained)
    assert going_on["jax"].evaluate(batch()).loss == first["jax"].evaluate(batch()).loss
    steps = {name: backend.step(batch()).loss for name, backend in going_on.items()}
    assert steps["jax"] == pytest.approx(steps["torch"], rel=1e-4)
    assert np.abs(going_on["jax"].export()[next(iter(trained))] - trained[next(iter(trained))]).max() > 0


def test_peft_itself_computes_what_the_backend_does(probed_model: Path, jax_cache: Path, tmp_path: Path) -> None:
    backend = started("torch", probed_model, jax_cache)
    for _ in range(2):
        backend.step(batch())
    architecture = read_architecture(probed_model)
    config = AdapterConfig.of(adapted_modules(LORA, None, architecture), 0.0, "base")
    assert config.ranks
    assert config.alphas
    store_adapter(tmp_path / "peft", backend.export(), config, "")
    store_adapter(tmp_path / "flat", backend.export(), replace(config, alphas={}, rslora=False), "")
    tokens = rows(1)[0].tokens[None]
    inputs = model_inputs("sdpa", architecture, torch.float32, tokens, np.arange(tokens.size)[None], np.ones_like(tokens), "cpu")
    with torch.inference_mode():
        model = backend._model.eval().base
        ours = logits(model, architecture, hidden_states(model, architecture, inputs))
        theirs = {}
        for name in ("peft", "flat"):
            base = AutoModelForCausalLM.from_pretrained(probed_model, dtype=torch.float32)
            theirs[name] = PeftModel.from_pretrained(base, tmp_path / name).eval()(input_ids=torch.from_numpy(tokens).long()).logits
    assert (ours - theirs["peft"]).abs().max() < 1e-4
    assert (ours - theirs["flat"]).abs().max() > 1e-2, "the scales make no difference here"
