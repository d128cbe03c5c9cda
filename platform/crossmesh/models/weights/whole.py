"""Write a model whose weights were all trained: a Hugging Face folder like its base, with other tensors in it.

What the text decoder does not use (the vision tower of a multimodal model) is copied as it is.
"""

import shutil
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from safetensors import safe_open
from safetensors.numpy import save_file

from crossmesh.errors import CrossmeshError
from crossmesh.files import canonical_json, digest_file, digest_text, new_folder, read_json, write_json
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.serving_defaults import ServingDefaults, write_defaults
from crossmesh.models.targets import all_weights
from crossmesh.models.weights.fetch import companion_files
from crossmesh.models.weights.model_files import tensor_files
from crossmesh.models.weights.spelling import locate

_WEIGHTS_FILE = "model.safetensors"
_DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


def write_model(
    folder: Path, arrays: Mapping[str, npt.NDArray[np.float32]], base: Path, dtype: str, serving: ServingDefaults | None = None
) -> str:
    """Write a model folder, whole or not at all, and return its digest.

    Args:
        folder: does not exist.
        arrays: every tensor of the base's text decoder, by its name in `models/targets.py`; it is written under the one it has in the base,
            in pieces where it lies there in pieces.
        base: the folder that training started from; its configuration, tokenizer and template are copied.
        dtype: `float32`, or `bfloat16`, to which values are rounded.
        serving: what it is served with beyond what its base says.
    """
    shapes = _shapes(base)
    weights = list(all_weights(read_architecture(base)))
    decoder = {name for weight in weights for name in weight.stored_shapes}
    arrays = dict(arrays)
    for weight in (one for one in weights if one.pieces):
        whole = arrays.pop(weight.hf_name)
        arrays |= zip(weight.pieces, whole.reshape(len(weight.pieces), -1, whole.shape[-1]), strict=True)
    names = locate(decoder, shapes)
    for name in sorted(decoder | arrays.keys()):
        found = arrays[name].shape if name in arrays else None
        expected = shapes[names[name]] if name in names else None
        if found != expected:
            raise CrossmeshError(f"{name} has shape {found} in the trained model and {expected} in its base {base}.")
        if not np.isfinite(arrays[name]).all():
            raise CrossmeshError(f"{name} holds values that are not finite: the training diverged. Lower optim.learning_rate.")
    with new_folder(folder) as temporary:
        rounded = {names[name]: np.ascontiguousarray(array.astype(_DTYPES[dtype])) for name, array in sorted(arrays.items())}
        rounded |= _read(base, shapes.keys() - set(names.values()))
        save_file(rounded, str(temporary / _WEIGHTS_FILE), metadata={"format": "pt"})
        (temporary / _WEIGHTS_FILE).chmod(0o644)  # safetensors makes it private; servers may run as somebody else.
        for name in companion_files(base):
            shutil.copyfile(base / name, temporary / name)
        config = {key: value for key, value in read_json(base / "config.json").items() if key != "torch_dtype"}
        write_json(temporary / "config.json", {**config, "dtype": dtype})
        if serving:
            write_defaults(temporary, serving)
    return model_digest(folder)


def model_digest(folder: Path) -> str:
    """SHA-256 over the digests of all files of a model folder."""
    return digest_text(canonical_json({file.name: digest_file(file) for file in folder.iterdir() if file.is_file()}))


def _read(base: Path, names: AbstractSet[str]) -> dict[str, npt.NDArray[Any]]:
    found: dict[str, npt.NDArray[Any]] = {}
    for file in tensor_files(base):
        with safe_open(str(file), framework="numpy") as stream:
            found |= {name: stream.get_tensor(name) for name in names & set(stream.keys())}
    return found


def _shapes(base: Path) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor by name; only headers are read."""
    found: dict[str, tuple[int, ...]] = {}
    for file in tensor_files(base):
        with safe_open(str(file), framework="numpy") as stream:
            found |= {name: tuple(stream.get_slice(name).get_shape()) for name in stream.keys()}  # noqa: SIM118 - it is not a mapping
    return found
