"""A fully trained model is its base with other tensors: complete, rounded once, refused when it is not the same set."""

import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from crossmesh.config.training import ModelSpec
from crossmesh.errors import CrossmeshError
from crossmesh.files import read_json, write_json
from crossmesh.models.weights.fetch import fetch_model, folder_digests
from crossmesh.models.weights.whole import model_digest, write_model

Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fetch_model(ModelSpec(family="gemma4", weights="random://tiny_gemma4@0"), tmp_path_factory.mktemp("cache")).path


@pytest.fixture
def trained(base: Path) -> Arrays:
    return {name: array * np.float32(1.001) for name, array in load_file(base / "model.safetensors").items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_trained_model_is_a_complete_folder(tmp_path: Path, base: Path, trained: Arrays, dtype: str) -> None:
    digest = write_model(tmp_path / "model", trained, base, dtype)
    assert digest == model_digest(tmp_path / "model")
    written = load_file(tmp_path / "model" / "model.safetensors")
    assert written.keys() == trained.keys()
    bound = 0 if dtype == "float32" else 2**-8
    for name, array in trained.items():
        assert written[name].dtype.name == dtype
        assert np.abs(written[name].astype(np.float32) - array).max() <= bound * np.abs(array).max()
    before, after = folder_digests(base), folder_digests(tmp_path / "model")
    assert (after.tokenizer_digest, after.template_digest) == (before.tokenizer_digest, before.template_digest)
    assert after.weights_digest != before.weights_digest
    assert read_json(tmp_path / "model" / "config.json")["dtype"] == dtype


def test_what_is_not_the_text_decoder_is_copied_as_it_is(tmp_path: Path, base: Path, trained: Arrays) -> None:
    vision = np.arange(6, dtype=np.float32).reshape(2, 3).astype(ml_dtypes.bfloat16)
    shutil.copytree(base, tmp_path / "base")
    held = load_file(base / "model.safetensors") | {"model.vision_tower.patch.weight": vision}
    save_file(held, tmp_path / "base" / "model.safetensors")
    write_model(tmp_path / "model", trained, tmp_path / "base", "float32")
    written = load_file(tmp_path / "model" / "model.safetensors")
    assert written.keys() == held.keys()
    assert written["model.vision_tower.patch.weight"].dtype == vision.dtype
    assert written["model.vision_tower.patch.weight"].tobytes() == vision.tobytes()


def test_a_decoder_under_its_older_name_keeps_it(tmp_path: Path, base: Path, trained: Arrays) -> None:
    shutil.copytree(base, tmp_path / "base")
    text = {key: value for key, value in read_json(base / "config.json").items() if key != "dtype"}
    write_json(tmp_path / "base" / "config.json", {"model_type": "gemma4", "text_config": text})

    def called(prefix: str) -> Arrays:
        return {name.replace("model.", prefix, 1): array for name, array in trained.items()}

    save_file(called("language_model.model."), tmp_path / "base" / "model.safetensors")
    write_model(tmp_path / "model", called("model.language_model."), tmp_path / "base", "float32")
    assert load_file(tmp_path / "model" / "model.safetensors").keys() == called("language_model.model.").keys()


def test_another_set_of_tensors_is_refused(tmp_path: Path, base: Path, trained: Arrays) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    for arrays, complaint in (
        ({**trained, name: trained[name].T}, f"{name} has shape"),
        ({other: array for other, array in trained.items() if other != name}, f"{name} has shape None"),
        ({**trained, "model.more": np.zeros(1, np.float32)}, "model.more has shape .* and None in its base"),
        ({**trained, name: trained[name] * np.float32("nan")}, f"{name} holds values that are not finite"),
    ):
        with pytest.raises(CrossmeshError, match=complaint):
            write_model(tmp_path / "model", arrays, base, "float32")
    assert not (tmp_path / "model").exists()
