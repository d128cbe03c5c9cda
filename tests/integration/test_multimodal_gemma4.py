"""A multimodal Gemma 4: both backends take its text decoder under its own names, and nothing touches the rest."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from crossmesh.adapters.merge import merge
from crossmesh.adapters.peft_format import open_adapter, write_adapter
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import BackendSpec, LoraSpec, OptimSpec
from crossmesh.models.probe import probe_tokens
from crossmesh.models.torch.hf_torch import reference_logits
from crossmesh.models.weights.stores import LocalStore
from crossmesh.train.backend import TrainingSetup
from crossmesh.train.jax_backend import JaxBackend
from crossmesh.train.torch_backend import TorchBackend
from multimodal_folders import write_multimodal_gemma4
from random_rows import rows, unpacked

pytestmark = [pytest.mark.integration, pytest.mark.full]


@pytest.mark.parametrize("probed_model", ["gemma4_moe", "gemma4_e2b"], indirect=True)
def test_the_text_decoder_inside_a_multimodal_model_is_the_one_alone(probed_model: Path, jax_cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    others = write_multimodal_gemma4(probed_model, folder)
    assert any("vision_tower" in name for name in others)
    assert probed_model.name.startswith("random-tiny_gemma4_moe") or "model.language_model.layers.4.self_attn.k_proj.weight" in others

    tokens = probe_tokens(512)
    plain = (tokens, np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape), np.ones_like(tokens))
    np.testing.assert_allclose(reference_logits(folder, *plain), reference_logits(probed_model, *plain), atol=1e-5)

    spec = ExperimentSpec(lora=LoraSpec(rank=4), optim=OptimSpec(steps=4, learning_rate=1e-2), backend=BackendSpec(attention="plain"))
    torch, jax = TorchBackend(), JaxBackend()
    torch.init(TrainingSetup.of(spec, folder, jax_cache))
    jax.init(TrainingSetup.of(spec, folder, jax_cache))  # It holds its logits against transformers first.
    start, other = torch.export(), jax.export()
    assert all(name.startswith("base_model.model.model.language_model.layers.") for name in start)
    assert start.keys() == other.keys()
    assert all(np.array_equal(array, other[name]) for name, array in start.items())

    for seed in range(2):
        torch.step(unpacked(rows(4, seed), 2, 48))
    arrays = torch.export()
    modules = sorted({name.removeprefix("base_model.model.").rsplit(".lora_", 1)[0] for name in arrays})
    write_adapter(tmp_path / "adapter", arrays, rank=4, alpha=spec.lora.alpha, dropout=0.0, base_model="", modules=modules)
    merge(open_adapter(tmp_path / "adapter"), LocalStore(folder), tmp_path / "merged", lambda _done, _all: None)
    before, after = (load_file(where / "model.safetensors") for where in (folder, tmp_path / "merged"))
    changed = {name for name, array in before.items() if after[name].tobytes() != array.tobytes()}
    assert before.keys() == after.keys()
    assert changed == {f"{module}.weight" for module in modules}
    assert not changed & others
