"""Adapters are made ready for the engine only on the base they belong to, and again when their copy is damaged."""

from pathlib import Path

import pytest

from crossmesh.adapters.initial import initial_lora
from crossmesh.adapters.peft_format import adapter_digest, write_adapter
from crossmesh.errors import InputError
from crossmesh.models.families import read_architecture
from crossmesh.models.targets import expand_targets, hf_module_names
from crossmesh.models.weights import ModelFolder, fetch_model
from crossmesh.pipeline.evaluation import Adapter, serving_adapters
from crossmesh.spec.training import LORA_TARGETS, ModelSpec


def fetch(family: str, cache: Path) -> ModelFolder:
    return fetch_model(ModelSpec(family=family, weights=f"random://tiny_{family}@0"), cache)


@pytest.fixture
def model(tmp_path: Path) -> ModelFolder:
    return fetch("gemma4", tmp_path / "cache")


@pytest.fixture
def adapter(model: ModelFolder, tmp_path: Path) -> Adapter:
    targets = expand_targets(read_architecture(model.path), LORA_TARGETS)
    folder = tmp_path / "adapter"
    digest = write_adapter(
        folder, initial_lora(targets, 4, 0), rank=4, alpha=8, dropout=0, base_model="tiny", modules=hf_module_names(targets)
    )
    return Adapter("mine", folder, digest)


def test_a_damaged_copy_is_made_again(model: ModelFolder, adapter: Adapter, tmp_path: Path) -> None:
    served = serving_adapters(model, (adapter,), tmp_path)["mine"]
    digest = adapter_digest(served)
    (served / "adapter_model.safetensors").write_bytes(b"short")
    assert serving_adapters(model, (adapter,), tmp_path) == {"mine": served}
    assert adapter_digest(served) == digest


def test_an_adapter_of_another_base_is_refused_also_when_it_was_served_before(model: ModelFolder, adapter: Adapter, tmp_path: Path) -> None:
    serving_adapters(model, (adapter,), tmp_path)
    with pytest.raises(InputError, match=r"The adapter 'mine' in .* adapts .* adapter of another base"):
        serving_adapters(fetch("llama", tmp_path / "cache"), (adapter,), tmp_path)
