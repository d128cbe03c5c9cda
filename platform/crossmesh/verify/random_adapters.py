"""Adapters made up for a check: on every projection of a model, with a B that is not zero, so that every layer's answer changes."""

from pathlib import Path

import numpy as np

from crossmesh.adapters.initial import lora_names
from crossmesh.adapters.peft_format import write_adapter
from crossmesh.models.families import read_architecture
from crossmesh.models.targets import expand_targets, hf_module_names
from crossmesh.spec.training import LORA_TARGETS


def write_random_adapter(model: Path, folder: Path, seed: int, rank: int, spread: float = 0.1) -> Path:
    """Write a PEFT adapter of the model in `model` to `folder` and return it.

    `spread` is about how large the change of a projection's output is beside its input, element by element.
    """
    targets = expand_targets(read_architecture(model), LORA_TARGETS)
    random = np.random.default_rng(seed)
    arrays = {}
    for target in targets:
        name_a, name_b = lora_names(target.hf)
        arrays[name_a] = random.normal(0, target.in_features**-0.5, (rank, target.in_features)).astype(np.float32)
        arrays[name_b] = random.normal(0, spread * rank**-0.5, (target.out_features, rank)).astype(np.float32)
    modules = hf_module_names(targets)
    write_adapter(folder, arrays, rank=rank, alpha=float(rank), dropout=0.0, base_model=str(model), modules=modules)
    return folder
