"""A cut of a model has a layer of every kind, with the very weights of the whole."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from crossmesh.files import read_json
from crossmesh.models.families.registry import parse_architecture, read_architecture
from crossmesh.models.targets import all_weights, layer_weights
from crossmesh.models.weights import cut as cuts
from crossmesh.models.weights.cut import TOKENS_FILE, chosen_layers, cut_config, text_tokens, write_cut
from crossmesh.models.weights.random_weights import architecture_config, architecture_names, write_random

TINY = [name for name in architecture_names() if name.startswith("tiny_")]


def random_model(name: str, folder: Path) -> Path:
    folder.mkdir()
    write_random(f"{name}@0", folder)
    return folder


@pytest.mark.parametrize("name", TINY)
def test_a_cut_has_every_kind_of_layer_with_the_weights_of_the_whole(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "_VOCAB", 300)
    model, folder = random_model(name, tmp_path / "model"), tmp_path / "cut"
    folder.mkdir()
    whole = read_architecture(model)
    write_cut(model, whole, folder)
    cut, layers = read_architecture(folder), chosen_layers(whole)
    assert len(cut.layers) == len(layers)
    kinds = {(replace(layer, kv_from=None), layer.kv_from is not None) for layer in whole.layers}
    assert {(replace(layer, kv_from=None), layer.kv_from is not None) for layer in cut.layers} == kinds
    stored, kept = load_file(model / "model.safetensors"), load_file(folder / "model.safetensors")
    assert {one: array.shape for one, array in kept.items()} == {
        one: shape for weight in all_weights(cut) for one, shape in weight.stored_shapes.items()
    }
    for new, old in enumerate(layers):
        for small, weight in zip(layer_weights(cut, new), layer_weights(whole, old), strict=True):
            assert all(np.array_equal(kept[a], stored[b]) for a, b in zip(small.stored_shapes, weight.stored_shapes, strict=True))
    tokens, ids = text_tokens(model, whole.vocab), np.load(folder / TOKENS_FILE)
    table = f"{cut.prefix}embed_tokens.weight"
    assert cut.vocab == 300 > ids.max()
    assert np.array_equal(kept[table][ids], stored[table][tokens])
    if per_layer := cut.per_layer_input:
        table, shape = f"{cut.prefix}embed_tokens_per_layer.weight", (*tokens.shape, -1, per_layer)
        assert np.array_equal(kept[table][ids].reshape(shape), stored[table][tokens].reshape(shape)[:, :, list(layers)])
        name = f"{cut.prefix}per_layer_model_projection.weight"
        assert np.array_equal(kept[name].reshape(-1, per_layer, 128), stored[name].reshape(-1, per_layer, 128)[list(layers)])


@pytest.mark.parametrize("name", [name for name in architecture_names() if not name.startswith("tiny_")])
def test_the_cut_of_every_described_model_is_a_model_of_a_few_layers(name: str) -> None:
    config = architecture_config(name)
    whole = parse_architecture(config, name)
    layers = chosen_layers(whole)
    cut = parse_architecture(cut_config(config, whole, layers, 512), name)
    assert len(layers) <= 5
    assert layers[-1] == len(whole.layers) - 1
    strip: dict[str, Any] = {"kv_from": None, "window": 0}
    assert [replace(layer, **strip) for layer in cut.layers] == [replace(whole.layers[one], **strip) for one in layers]
    assert all(0 < layer.window <= 16 for layer in cut.layers if layer.attention == "sliding")


@pytest.mark.parametrize("name", ["qwen2_5_0_5b", "qwen3_0_6b"])
def test_the_kinds_of_layers_that_a_config_lists_are_cut_too(name: str) -> None:
    config = architecture_config(name)
    listed = {**config, "layer_types": ["full_attention"] * config["num_hidden_layers"]}
    whole = parse_architecture(listed, name)
    layers = chosen_layers(whole)
    assert len(parse_architecture(cut_config(listed, whole, layers, 512), name).layers) == len(layers)


def test_a_decoder_inside_a_multimodal_model_is_cut_out(tmp_path: Path) -> None:
    model = random_model("tiny_gemma4", tmp_path / "model")
    config = read_json(model / "config.json")
    (model / "config.json").write_text(json.dumps({"model_type": "gemma4", "text_config": config}))
    arrays = load_file(model / "model.safetensors")
    save_file({re.sub("^model[.]", "model.language_model.", name): array for name, array in arrays.items()}, model / "model.safetensors")
    (tmp_path / "cut").mkdir()
    write_cut(model, read_architecture(model), tmp_path / "cut")
    assert read_architecture(tmp_path / "cut").prefix == "model."
    assert "model.layers.1.mlp.up_proj.weight" in load_file(tmp_path / "cut" / "model.safetensors")
