"""LoRA arrays between PEFT's names and layout and those of Qwix on a Tunix model. Pure numpy, exact to the last bit, both ways.

PEFT keeps A [rank, in] and B [out, rank] per Hugging Face module. Qwix keeps `lora_a` [*in, rank] and `lora_b` [rank, *out] beside the
Tunix weight, with `in` or `out` split into heads as that weight has them. Both say y = W x + alpha / rank * B A x, so the numbers are
the same and only their order differs.
"""

from collections.abc import Mapping

import numpy as np

from crossmesh.adapters.initial import FloatArray, lora_names
from crossmesh.models.targets import Target

Path = tuple[str | int, ...]
"""Where an array sits in the Tunix model, from the model down."""


def qwix_paths(target: Target) -> tuple[Path, Path]:
    """Paths of `lora_a` and `lora_b` of `target`: Qwix names them after the weight they stand beside."""
    weight = target.weight
    return (*weight.tunix, f"{weight.tunix_param}_lora_a"), (*weight.tunix, f"{weight.tunix_param}_lora_b")


def to_qwix(arrays: Mapping[str, FloatArray], targets: tuple[Target, ...]) -> dict[Path, FloatArray]:
    """Turn PEFT-named `arrays` into Qwix arrays by path. Raises `ValueError` when names or shapes are not those of `targets`."""
    found: dict[Path, FloatArray] = {}
    for target in targets:
        a_name, b_name = lora_names(target.hf)
        a = _take(arrays, a_name, 1, target.in_features)
        b = _take(arrays, b_name, 0, target.out_features)
        a_path, b_path = qwix_paths(target)
        rank = a.shape[0]
        if b.shape[1] != rank:
            raise ValueError(f"{target.hf}: A has rank {rank}, B has rank {b.shape[1]}")
        found[a_path] = np.ascontiguousarray(a.T).reshape(*target.tunix_a_shape, rank)
        found[b_path] = np.ascontiguousarray(b.T).reshape(rank, *target.tunix_b_shape)
    if len(arrays) != len(found):
        known = {name for target in targets for name in lora_names(target.hf)}
        raise ValueError(f"arrays that belong to no target: {sorted(set(arrays) - known)}")
    return found


def to_peft(arrays: Mapping[Path, FloatArray], targets: tuple[Target, ...]) -> dict[str, FloatArray]:
    """Turn Qwix arrays by path into PEFT-named arrays; the inverse of `to_qwix`."""
    found: dict[str, FloatArray] = {}
    for target in targets:
        a_path, b_path = qwix_paths(target)
        a, b = np.asarray(arrays[a_path], np.float32), np.asarray(arrays[b_path], np.float32)
        a_name, b_name = lora_names(target.hf)
        found[a_name] = np.ascontiguousarray(a.reshape(target.in_features, a.shape[-1]).T)
        found[b_name] = np.ascontiguousarray(b.reshape(b.shape[0], target.out_features).T)
    return found


def _take(arrays: Mapping[str, FloatArray], name: str, axis: int, size: int) -> FloatArray:
    if name not in arrays:
        raise ValueError(f"{name} is missing")
    array = arrays[name]
    if array.ndim != 2 or array.shape[axis] != size:
        raise ValueError(f"{name} has shape {array.shape}, expected {size} on axis {axis}")
    return np.asarray(array, np.float32)
