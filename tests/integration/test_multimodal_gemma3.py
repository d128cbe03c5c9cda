"""A multimodal Gemma 3, its names as transformers 4 and as transformers 5 writes them, is its text decoder on both backends."""

from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoModel, SiglipVisionConfig

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import LoraSpec, ModelSpec
from crossmesh.files import write_json
from crossmesh.hardware.mesh import MeshShape
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.jax import tunix_jax
from crossmesh.models.jax.layers_jax import ModelConfig
from crossmesh.models.torch.hf_torch import reference_logits
from crossmesh.models.weights.fetch import fetch_model
from crossmesh.models.weights.random_weights import architecture_config
from crossmesh.train.backend import TrainingSetup
from crossmesh.train.torch_backend import TorchBackend
from random_rows import rows, unpacked

pytestmark = [pytest.mark.integration, pytest.mark.full]
VISION = {"model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
          "num_attention_heads": 2, "image_size": 28, "patch_size": 14}  # fmt: skip
TOKENS = np.random.default_rng(0).integers(5, 512, (2, 40)).astype(np.int32)
POSITIONS = np.ascontiguousarray(np.broadcast_to(np.arange(40, dtype=np.int32), TOKENS.shape))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fetch_model(ModelSpec("gemma3", "random://tiny_gemma3@0"), tmp_path_factory.mktemp("cache")).path


@pytest.fixture(scope="module", params=["language_model.model.", "model.language_model."])
def multimodal(request: pytest.FixtureRequest, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text model inside one with a vision tower."""
    folder, decoder = tmp_path_factory.mktemp("multimodal"), request.param
    outside = "" if decoder == "language_model.model." else "model."
    tower = AutoModel.from_config(SiglipVisionConfig(**{key: value for key, value in VISION.items() if key != "model_type"}))
    arrays = {f"{outside}vision_tower.{name}": value.numpy() for name, value in tower.state_dict().items()}
    arrays |= {
        f"{outside}multi_modal_projector.mm_input_projection_weight": np.ones((32, 128), np.float32),
        f"{outside}multi_modal_projector.mm_soft_emb_norm.weight": np.ones(32, np.float32),
    }
    arrays |= {name.replace("model.", decoder, 1): array for name, array in load_file(text / "model.safetensors").items()}
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "mm_tokens_per_image": 4}
    write_json(folder / "config.json", {**config, "text_config": architecture_config("tiny_gemma3"), "vision_config": VISION})
    return folder


def test_both_backends_read_the_decoder_and_leave_the_rest_alone(text: Path, multimodal: Path, tmp_path: Path) -> None:
    expected = reference_logits(text, TOKENS, POSITIONS, np.ones_like(TOKENS))
    np.testing.assert_allclose(reference_logits(multimodal, TOKENS, POSITIONS, np.ones_like(TOKENS)), expected, atol=1e-5)

    structure = tunix_jax.build(read_architecture(multimodal), ModelConfig())
    arrays = tunix_jax.load_weights(structure, multimodal, tunix_jax.device_mesh(MeshShape(1, 1, 1)))
    logits = jax.jit(lambda *values: tunix_jax.all_logits(structure, *values))(*arrays, TOKENS, POSITIONS, np.ones_like(TOKENS))
    np.testing.assert_allclose(np.asarray(logits), expected, atol=1e-3)

    batch, losses, names = unpacked(rows(2), 2, 48), [], []
    for folder in (text, multimodal):
        backend = TorchBackend()
        backend.init(TrainingSetup.of(ExperimentSpec(lora=LoraSpec(rank=4)), folder, tmp_path))
        losses.append(backend.step(batch).loss)
        names.append(set(backend.export()))
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    assert names[1] == {name.replace("base_model.model.model.", "base_model.model.model.language_model.") for name in names[0]}
