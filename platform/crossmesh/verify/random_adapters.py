"""Adapters made up for a check: on every projection of a model, with a B that is not zero, so that every layer's answer changes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from crossmesh.adapters.initial import FloatArray, lora_names
from crossmesh.adapters.peft_config import AdapterConfig
from crossmesh.adapters.peft_format import store_adapter
from crossmesh.config.training import LoraSpec
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.lora import LoraModule, lora_modules
from crossmesh.models.serving_defaults import ServingDefaults


def write_random_adapter(
    model: Path, folder: Path, seed: int, rank: int, spread: float = 0.1, serving: ServingDefaults | None = None
) -> Path:
    """Write a PEFT adapter of the model in `model` to `folder` and return it; alpha is the rank. `spread` is `random_arrays`'."""
    modules = lora_modules(LoraSpec(rank=rank, alpha=float(rank)), read_architecture(model))
    store_adapter(folder, random_arrays(modules, seed, spread), AdapterConfig.of(modules, 0.0, str(model)), "", serving)
    return folder


def random_arrays(modules: Sequence[LoraModule], seed: int, spread: float) -> dict[str, FloatArray]:
    """A [rank, in] and B [out, rank] of each module by PEFT name, float32.

    `spread` is about how large B A x is beside x, element by element.
    """
    random = np.random.default_rng(seed)
    arrays = {}
    for module in modules:
        (name_a, name_b), target = lora_names(module.target.hf), module.target
        arrays[name_a] = random.normal(0, target.in_features**-0.5, (module.rank, target.in_features)).astype(np.float32)
        arrays[name_b] = random.normal(0, spread * module.rank**-0.5, (target.out_features, module.rank)).astype(np.float32)
    return arrays
