"""An adapter to continue from is held against base and spec before anything starts, and kept where workers find it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crossmesh.adapters.init_adapter import InitAdapter, adapted_modules, find_init_adapter, first_values
from crossmesh.adapters.initial import initial_lora
from crossmesh.adapters.peft_config import AdapterConfig
from crossmesh.adapters.peft_format import store_adapter
from crossmesh.config.services import StorageSpec
from crossmesh.config.training import LoraSpec
from crossmesh.errors import InputError
from crossmesh.models.architecture import Architecture
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.lora import lora_modules
from crossmesh.models.weights.fetch import ModelFolder
from crossmesh.models.weights.random_weights import architecture_config
from crossmesh.track.tracker import Tracker

BASE = "b" * 64
OWN = LoraSpec(rank=4, alpha=6.0, targets=("q", "up"), use_rslora=True, rank_pattern={r"layers\.0\..*q_proj": 2})


@pytest.fixture(scope="module")
def llama() -> Architecture:
    return parse_architecture(architecture_config("tiny_llama"), "tiny_llama")


@pytest.fixture
def adapter(llama: Architecture, tmp_path: Path) -> Path:
    modules = lora_modules(OWN, llama)
    arrays = {name: array + np.float32(0.5) for name, array in initial_lora(modules, 1).items()}
    store_adapter(tmp_path / "mine", arrays, AdapterConfig.of(modules, 0.0, "base"), BASE)
    return tmp_path / "mine"


def no_tracker() -> Tracker:
    raise AssertionError("no run was named")


def find(lora: LoraSpec, architecture: Architecture, root: Path, base: str = BASE) -> InitAdapter | None:
    return find_init_adapter(lora, ModelFolder(root, base, "t", "c"), architecture, StorageSpec(str(root / "storage")), no_tracker)


def test_ranks_alphas_and_modules_are_the_adapters(llama: Architecture, adapter: Path, tmp_path: Path) -> None:
    lora = LoraSpec(adapter=str(adapter), seed=7, dropout=0.1)
    start = find(lora, llama, tmp_path)
    assert start is not None
    assert start.folder.is_relative_to(tmp_path / "storage")
    modules = adapted_modules(lora, start.folder, llama)
    assert modules == lora_modules(OWN, llama)
    values = first_values(lora, start.folder, modules)
    assert all(np.array_equal(values[name], array + np.float32(0.5)) for name, array in initial_lora(modules, 1).items())
    # What happens to the origin afterwards changes nothing.
    (adapter / "adapter_model.safetensors").unlink()
    assert first_values(lora, start.folder, modules).keys() == values.keys()


def test_without_an_adapter_training_starts_from_the_seed(llama: Architecture, tmp_path: Path) -> None:
    lora = LoraSpec(rank=2, seed=3)
    assert find(lora, llama, tmp_path) is None
    modules = adapted_modules(lora, None, llama)
    assert modules == lora_modules(lora, llama)
    assert all(np.array_equal(array, initial_lora(modules, 3)[name]) for name, array in first_values(lora, None, modules).items())


def test_what_the_spec_says_as_the_adapter_does_is_no_contradiction(llama: Architecture, adapter: Path, tmp_path: Path) -> None:
    assert find(LoraSpec(adapter=str(adapter), rank=4, alpha=6.0, targets=("up", "q"), use_rslora=True), llama, tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rank": 8}, r"lora\.rank=8 contradicts lora\.adapter=.*which has 4\..*leave lora\.rank out"),
        ({"alpha": 8.0}, r"lora\.alpha=8\.0 contradicts .*which has 6\.0"),
        ({"targets": ("q",)}, r"lora\.targets=\[q\] contradicts .*which has \[q,up\]"),
    ],
)
def test_a_spec_that_says_otherwise_is_refused(
    llama: Architecture, adapter: Path, tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        find(replace(LoraSpec(adapter=str(adapter)), **changes), llama, tmp_path)
    assert not (tmp_path / "storage").exists()


def test_another_base_is_refused_by_shape_and_by_digest(llama: Architecture, adapter: Path, tmp_path: Path) -> None:
    lora = LoraSpec(adapter=str(adapter))
    with pytest.raises(InputError, match=r"was trained on other weights than these: it says bbbb.*they are cccc"):
        find(lora, llama, tmp_path, base="c" * 64)
    with pytest.raises(InputError, match="adapter of another base"):
        find(lora, replace(llama, hidden=llama.hidden + 64), tmp_path)
    assert not (tmp_path / "storage").exists()
