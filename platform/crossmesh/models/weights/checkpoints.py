"""A sharded safetensors checkpoint as it lies in a store: its files, and where in them each tensor is. No tensor is read.

The format is https://huggingface.co/docs/safetensors: eight bytes of length, a JSON header, then the tensors without gaps. It has no
checksum; what can be wrong without one (a header that does not fit its file, an index that does not fit its shards) is found here.
"""

import json
import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import ml_dtypes
import numpy as np

from crossmesh.errors import InputError
from crossmesh.models.weights.stores import Store, read_small

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
"""Endings of files that can run code when they are read."""
_HEADER_LIMIT = 100_000_000
"""The safetensors library refuses longer headers."""
_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Size of an element by its name in the header."""
FLOATS: Mapping[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
"""Types that can be computed with; others are integers, or quantized."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file."""

    name: str
    dtype: str
    """As the header writes it: `BF16`, `F16`, `F32`, ..."""
    shape: tuple[int, ...]
    start: int
    """First byte, counted from the end of the header."""
    end: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start


@dataclass(frozen=True)
class Shard:
    """One safetensors file."""

    name: str
    header: bytes
    """The length and the JSON, as they stand at the file's start."""
    tensors: tuple[Tensor, ...]
    """In the order in which they lie; together they are the rest of the file."""
    metadata: Mapping[str, str]

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self.header) + (self.tensors[-1].end if self.tensors else 0)


@dataclass(frozen=True)
class Checkpoint:
    """All shards of a model."""

    store: Store
    shards: tuple[Shard, ...]
    """By name."""

    @property
    def size(self) -> int:
        """Bytes of the shards."""
        return sum(shard.size for shard in self.shards)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name."""
        return {tensor.name: tensor for shard in self.shards for tensor in shard.tensors}


def open_checkpoint(store: Store) -> Checkpoint:
    """Read the index and the headers of the checkpoint in `store`.

    Raises `InputError` when there are no safetensors (pickles are never read), a shard is missing, a header is damaged, or index and
    shards do not say the same.
    """
    sizes = store.names()
    index = _read_index(store, sizes)
    names = sorted(set(index.values())) if index is not None else [_only_file(store, sizes)]
    missing = [name for name in names if name not in sizes]
    if missing:
        raise InputError(f"{store.address} lacks {', '.join(missing)}, which {INDEX_FILE} names. Give a complete model folder.")
    shards = tuple(read_shard(store, name, sizes[name]) for name in names)
    where: dict[str, str] = {}
    for shard in shards:
        for tensor in shard.tensors:
            if tensor.name in where:
                raise InputError(f"{store.address}: {tensor.name} lies in {where[tensor.name]} and in {shard.name}. It must lie in one.")
            where[tensor.name] = shard.name
    for tensor_name, file in (index or {}).items():
        if where.get(tensor_name) != file:
            lies = f"it lies in {where[tensor_name]}" if tensor_name in where else "no file has it"
            raise InputError(
                f"{store.address}: {INDEX_FILE} names {tensor_name} in {file}, but {lies}. Copy or download the model again: index and "
                "shards must come from one export."
            )
    return Checkpoint(store, shards)


def read_shard(store: Store, name: str, size: int) -> Shard:
    """Read the header of the safetensors file `name` of `size` bytes. Raises `InputError` when it is damaged."""
    origin = f"{store.address}/{name}"
    with closing(store.open(name)) as reader:
        if size < 8:
            raise _damaged(origin, f"it has {size} bytes")
        prefix = reader.read(8)
        length = int.from_bytes(prefix, "little")
        if length > min(size - 8, _HEADER_LIMIT):
            raise _damaged(origin, f"its header claims {length} bytes, the file has {size}")
        header = reader.read(length)
    try:
        entries: dict[str, Any] = json.loads(header)
        metadata = entries.pop("__metadata__", {})
        tensors = sorted((_tensor(key, entry) for key, entry in entries.items()), key=lambda tensor: (tensor.start, tensor.end))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(origin, f"its header is not the JSON of safetensors ({type(error).__name__}: {error})") from error
    expected = 0
    for tensor in tensors:
        if tensor.start != expected:
            raise _damaged(origin, f"{tensor.name} begins at byte {tensor.start} of the data, where {expected} is next")
        expected = tensor.end
    if 8 + length + expected != size:
        raise _damaged(origin, f"its header describes {8 + length + expected} bytes, the file has {size}")
    return Shard(name, prefix + header, tuple(tensors), metadata)


def _tensor(name: str, entry: Mapping[str, Any]) -> Tensor:
    shape, (start, end) = tuple(entry["shape"]), entry["data_offsets"]
    if not all(isinstance(number, int) and number >= 0 for number in (*shape, start, end)):
        raise ValueError(f"{name} has shape {shape} and offsets {start}, {end}")
    if math.prod(shape) * _BITS[entry["dtype"]] != (end - start) * 8:
        raise ValueError(f"{name}: {end - start} bytes do not hold {entry['dtype']} {list(shape)}")
    return Tensor(name, entry["dtype"], shape, start, end)


def _read_index(store: Store, sizes: Mapping[str, int]) -> dict[str, str] | None:
    """File by tensor; None when there is no index."""
    if INDEX_FILE not in sizes:
        return None
    path = f"{store.address}/{INDEX_FILE}"
    try:
        index = {str(name): str(file) for name, file in json.loads(read_small(store, INDEX_FILE))["weight_map"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        needed = "a JSON object whose weight_map names the file of each tensor"
        raise InputError(f"{path} cannot be read ({type(error).__name__}: {error}). Needed: {needed}.") from error
    if not index:
        raise InputError(f"{path} names no tensors. Give a complete model folder.")
    for file in index.values():
        if PurePosixPath(file).name != file or not file.endswith(".safetensors"):
            raise InputError(f"{path} names the file {file!r}. Allowed: safetensors files beside the index. Pickles are never read.")
    return index


def _only_file(store: Store, sizes: Mapping[str, int]) -> str:
    """The file of a checkpoint without an index."""
    found = [name for name in sizes if name.endswith(".safetensors")]
    if SINGLE_FILE in found or len(found) == 1:
        return SINGLE_FILE if SINGLE_FILE in found else found[0]
    if found:
        raise InputError(f"{store.address} has {len(found)} safetensors files and no {INDEX_FILE} that orders them. Add the index.")
    pickles = sorted(name for name in sizes if name.endswith(PICKLES))
    if pickles:
        raise InputError(
            f"{store.address} has only pickled weights ({pickles[0]}), which can run code when they are read. Allowed: safetensors. "
            "Convert the model first, or use a revision that has safetensors."
        )
    raise InputError(f"{store.address} has no weights. Allowed: a folder with {SINGLE_FILE}, or with several named by {INDEX_FILE}.")


def _damaged(origin: str, reason: str) -> InputError:
    return InputError(f"{origin} is damaged: {reason}. Copy or download it again.")
