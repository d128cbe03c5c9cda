"""A text model's folder as the multimodal checkpoint that holds it: other names, a vision tower beside it, tensors that nothing reads."""

import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText

from crossmesh.files import read_json, write_json
from crossmesh.models.families.registry import family_of, read_architecture

_VISION = {
    "model_type": "gemma4_vision",
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "position_embedding_size": 16,
}


def write_multimodal_gemma4(text: Path, folder: Path) -> set[str]:
    """Write a Gemma 4 with the text decoder in `text` to `folder`; return the names of the tensors that are not the decoder's.

    Layers that use an earlier layer's keys and values get projections for them all the same, as published checkpoints have.
    """
    shutil.copytree(text, folder)
    config = {key: value for key, value in read_json(text / "config.json").items() if key != "architectures"}
    whole = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "text_config": config, "vision_config": _VISION}
    write_json(folder / "config.json", whole)
    arrays = load_file(text / "model.safetensors")
    held = {f"model.language_model.{name.removeprefix('model.')}": array for name, array in arrays.items()}
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder))
    random = np.random.default_rng(0)
    others = {
        name: tuple(value.shape) for name, value in model.state_dict().items() if "language_model" not in name and "lm_head" not in name
    }
    others |= dict.fromkeys(family_of(read_architecture(folder)).unused(read_architecture(folder)), (8, 8))
    held |= {name: random.standard_normal(shape).astype(np.float32) for name, shape in others.items()}
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    return set(others)
