"""Untrained models of a known architecture, for tests and for trying a pipeline in seconds.

Values are drawn so that engines which disagree anywhere show it: logits are far from flat, every norm has its own scale, and the
final norm's scales change sign so that the model does not merely repeat its input. Made with numpy alone; no framework is loaded.

Their tokenizer (`tiny_tokenizer/`) is byte-level BPE of 512 tokens, merges counted on Verilog and its descriptions, so that any text
goes through it; its chat template is ours.
"""

import hashlib
import json
import math
import re
import shutil
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from crossmesh.errors import InputError, require_choice
from crossmesh.files import digest_text, write_json
from crossmesh.models.families.registry import families, family_of, parse_architecture
from crossmesh.models.targets import all_weights, parameter_count

FloatArray = npt.NDArray[np.float32]

_RECIPE = 1
"""Raised whenever the same name and seed give other weights."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_LARGEST = 100_000_000
"""Parameters up to which weights are drawn: more take too long for what they are good for."""
_END_OF_TURN = 4
"""Token `<|end|>` of the tiny tokenizer."""
_EMBEDDING_STD = 0.25
_BIAS_STD = 0.5
_LOCATION = re.compile(r"(?P<architecture>[a-z0-9_]+)@(?P<seed>[0-9]+)")


def architecture_names() -> tuple[str, ...]:
    """Names of the architectures that come with crossmesh and with families of other packages."""
    return tuple(sorted(_architecture_files()))


def architecture_config(name: str) -> dict[str, Any]:
    """The Hugging Face config of a shipped architecture, e.g. `gemma4_31b`."""
    require_choice("architecture", name, architecture_names())
    config: dict[str, Any] = json.loads(_architecture_files()[name].read_text(encoding="utf-8"))
    return config


def random_version(location: str) -> str:
    """Return a text that changes whenever `write_random` would write something else for `location` (`architecture@seed`)."""
    name, seed = _parse(location)
    files = [_architecture_files()[name], *(_data("tiny_tokenizer").joinpath(file) for file in _TOKENIZER_FILES)]
    return digest_text("\n".join([str(_RECIPE), name, str(seed), *(file.read_text(encoding="utf-8") for file in files)]))


def write_random(location: str, folder: Path) -> None:
    """Write a complete model folder (config, float32 weights, tokenizer, chat template) for `architecture@seed`.

    Raises `InputError` for an unknown architecture and for one that is too large to be made this way.
    """
    name, seed = _parse(location)
    config = architecture_config(name)
    architecture = parse_architecture(config, f"{name}.json")
    if parameter_count(architecture) > _LARGEST:
        described = {other: parse_architecture(architecture_config(other), other) for other in architecture_names()}
        small = [other for other, one in described.items() if parameter_count(one) <= _LARGEST]
        raise InputError(
            f"model.weights='random://{location}' is not possible: {name} is described for planning, not for random weights. "
            f"Allowed: {', '.join(small)}."
        )
    shapes = {name: shape for weight in all_weights(architecture) for name, shape in weight.stored_shapes.items()}
    arrays = {name: _draw(name, shape, seed) for name, shape in shapes.items()}
    if family_of(architecture).centered_norms:
        arrays = {name: array - 1 if array.ndim == 1 else array for name, array in arrays.items()}
    save_file(arrays, str(folder / "model.safetensors"), metadata={"format": "pt"})
    write_json(folder / "config.json", {**config, "dtype": "float32"})
    stops = [config["eos_token_id"], _END_OF_TURN]
    write_json(
        folder / "generation_config.json",
        {"bos_token_id": config["bos_token_id"], "eos_token_id": stops, "pad_token_id": config["pad_token_id"]},
    )
    for file in _TOKENIZER_FILES:
        with resources.as_file(_data("tiny_tokenizer").joinpath(file)) as source:
            shutil.copyfile(source, folder / file)


def _draw(name: str, shape: tuple[int, ...], seed: int) -> FloatArray:
    """Draw one tensor from a stream of its own, so that a tensor's values depend on its name and the seed only."""
    key = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:16], "little")
    stream = np.random.Generator(np.random.Philox(key=key))
    if name.endswith("layer_scalar"):
        return stream.uniform(0.8, 1.2, shape).astype(np.float32)
    if name.endswith(".bias"):
        return (_BIAS_STD * stream.standard_normal(shape)).astype(np.float32)
    if len(shape) == 1:
        final = ".layers." not in name
        return (stream.standard_normal(shape) if final else stream.uniform(0.5, 1.5, shape)).astype(np.float32)
    if name.endswith("router.proj.weight"):
        return stream.standard_normal(shape).astype(np.float32)  # Its input has length one: experts are far from equally likely.
    std = _EMBEDDING_STD if "embed_tokens" in name or name.startswith("lm_head") else 1 / math.sqrt(shape[-1])
    return (std * stream.standard_normal(shape)).astype(np.float32)


def _parse(location: str) -> tuple[str, int]:
    match = _LOCATION.fullmatch(location)
    if match is None:
        raise InputError(
            f"model.weights='random://{location}' is not possible. Allowed: random://architecture@seed, e.g. random://tiny_llama@0."
        )
    require_choice(f"model.weights='random://{location}': architecture", match["architecture"], architecture_names())
    return match["architecture"], int(match["seed"])


def _architecture_files() -> dict[str, Path]:
    """Files by name: the published ones, and each family's tiny ones, `tiny_<family>` with what follows `tiny` in the file's name."""
    files = {file.stem: file for file in (Path(__file__).parents[1] / "architectures").glob("*.json")}
    for name, family in families().items():
        files |= {f"tiny_{name}{file.stem.removeprefix('tiny')}": file for file in family.folder.glob("tiny*.json")}
    return files


def _data(folder: str) -> Traversable:
    return resources.files("crossmesh.models").joinpath(folder)
