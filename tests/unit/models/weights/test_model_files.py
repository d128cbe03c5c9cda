"""Which files are the model: the index before anything else, for every reader and for the digest."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from crossmesh.config.training import ModelSpec
from crossmesh.errors import InputError
from crossmesh.models.weights.fetch import ModelFolder, fetch_model
from crossmesh.models.weights.model_files import model_alone, only_model, tensor_files


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A model in two shards with an index."""
    made = fetch_model(ModelSpec(family="llama", weights="random://tiny_llama@0"), tmp_path / "made").path
    folder = tmp_path / "model"
    shutil.copytree(made, folder)
    (folder / "crossmesh.json").unlink()
    arrays = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    halves = {"model-00001-of-00002.safetensors": sorted(arrays)[::2], "model-00002-of-00002.safetensors": sorted(arrays)[1::2]}
    for name, names in halves.items():
        save_file({one: arrays[one] for one in names}, folder / name)
    weight_map = {one: name for name, names in halves.items() for one in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def fetch(folder: Path, cache: Path) -> ModelFolder:
    return fetch_model(ModelSpec(family="llama", weights=str(folder)), cache)


@pytest.mark.parametrize("stray", ["model.safetensors", "consolidated.safetensors", "adapter_model.safetensors", "zz.safetensors"])
def test_another_file_beside_the_index_is_read_by_nobody(sharded: Path, tmp_path: Path, stray: str) -> None:
    alone = fetch(sharded, tmp_path / "cache")
    assert alone.path == sharded
    old = {name: np.zeros_like(array) for file in tensor_files(sharded) for name, array in load_file(file).items()}
    save_file(old, sharded / stray)
    (sharded / "params.json").write_text("{}")

    found = fetch(sharded, tmp_path / "cache")

    assert found.weights_digest == alone.weights_digest
    assert found.path != sharded
    assert sorted(file.name for file in found.path.glob("*.safetensors")) == [file.name for file in tensor_files(sharded)]
    assert not (found.path / "params.json").exists()
    assert (found.path / "tokenizer.json").read_bytes() == (sharded / "tokenizer.json").read_bytes()
    assert only_model(found.path)
    with model_alone(sharded) as files:
        assert sorted(file.name for file in files.glob("*.safetensors")) == [file.name for file in tensor_files(sharded)]


def test_the_digest_follows_every_file_that_is_read(sharded: Path, tmp_path: Path) -> None:
    before = fetch(sharded, tmp_path / "cache").weights_digest
    save_file({"old": np.zeros(1, np.float32)}, sharded / "model.safetensors")
    arrays = load_file(sharded / "model-00002-of-00002.safetensors")
    name = min(arrays)
    save_file(arrays | {name: arrays[name] + 1}, sharded / "model-00002-of-00002.safetensors")
    assert fetch(sharded, tmp_path / "cache").weights_digest != before


def test_a_single_file_is_taken_by_name(tmp_path: Path) -> None:
    made = fetch_model(ModelSpec(family="llama", weights="random://tiny_llama@0"), tmp_path / "made").path
    folder = tmp_path / "model"
    shutil.copytree(made, folder)
    save_file({"lora": np.zeros(1, np.float32)}, folder / "adapter_model.safetensors")
    found = fetch(folder, tmp_path / "cache")
    assert [file.name for file in found.path.glob("*.safetensors")] == ["model.safetensors"]
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    with pytest.raises(InputError, match="2 safetensors files and no model"):
        fetch(folder, tmp_path / "cache")


def test_an_index_that_names_the_single_file_beside_others_is_refused(sharded: Path, tmp_path: Path) -> None:
    text = (sharded / "model.safetensors.index.json").read_text()
    (sharded / "model-00001-of-00002.safetensors").rename(sharded / "model.safetensors")
    (sharded / "model.safetensors.index.json").write_text(text.replace("model-00001-of-00002.safetensors", "model.safetensors"))
    with pytest.raises(InputError, match=r"transformers would read that one alone\. Rename it"):
        fetch(sharded, tmp_path / "cache")
