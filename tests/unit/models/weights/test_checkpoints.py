"""Headers and indexes of safetensors checkpoints: read as the library reads them, and whatever is wrong in them is one message."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from checkpoint_folders import BFLOAT16, write_checkpoint
from crossmesh.errors import InputError
from crossmesh.models.weights.checkpoints import open_checkpoint
from crossmesh.models.weights.stores import LocalStore, open_store, read_small


def write_raw(folder: Path, header: Any, data: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


def entry(start: int, end: int, dtype: str = "F32", shape: tuple[int, ...] = (2,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


def test_tensors_lie_where_the_library_finds_them(tmp_path: Path) -> None:
    arrays = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.ones((3,), BFLOAT16),
        "empty": np.ones((0, 4), np.float16),
        "scalar": np.array(7, np.int64),
        "flag": np.array([True, False]),
    }
    write_checkpoint(tmp_path / "model", [arrays])
    checkpoint = open_checkpoint(open_store(str(tmp_path / "model")))
    (shard,) = checkpoint.shards
    data = (tmp_path / "model" / shard.name).read_bytes()
    assert data[: len(shard.header)] == shard.header
    assert checkpoint.size == len(data)
    with safe_open(tmp_path / "model" / shard.name, framework="numpy") as library:
        assert {tensor.name for tensor in shard.tensors} == set(library.keys())
    for name, tensor in checkpoint.tensors.items():
        assert tensor.shape == arrays[name].shape
        assert data[len(shard.header) + tensor.start : len(shard.header) + tensor.end] == arrays[name].tobytes()
    assert shard.metadata == {"format": "pt"}


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": entry(0, 8), "b": entry(4, 12)}, b"0" * 12, "b begins at byte 4 of the data, where 8 is next"),
        ({"a": entry(0, 8), "b": entry(12, 20)}, b"0" * 20, "b begins at byte 12 of the data, where 8 is next"),
        ({"a": entry(0, 8, shape=(3,))}, b"0" * 8, "8 bytes do not hold F32"),
        ({"a": entry(0, 8, dtype="F7")}, b"0" * 8, "KeyError"),
        ({"a": entry(-8, 0)}, b"", "ValueError"),
        ({"a": entry(0, 8, shape=(-1, -2))}, b"0" * 8, "ValueError"),
        ({"a": entry(0, 8)}, b"0" * 9, "describes .* bytes, the file has"),
        ([1, 2], b"", "is not the JSON of safetensors"),
        (b"\xff\xfe", b"", "is not the JSON of safetensors"),
        (b'{"a": 1' * 3, b"", "is not the JSON of safetensors"),
        (b"[" * 100_000, b"", "is not the JSON of safetensors"),
    ],
)
def test_a_header_that_does_not_fit_its_file_is_damage(tmp_path: Path, header: Any, data: bytes, message: str) -> None:
    write_raw(tmp_path, header, data)
    with pytest.raises(InputError, match=rf"model\.safetensors is damaged: .*{message}"):
        open_checkpoint(LocalStore(tmp_path))


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=120), place=st.integers(0, 200), keep=st.booleans())
def test_no_damage_of_a_header_is_more_than_one_message(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, place: int, keep: bool
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    write_raw(folder, {"a": entry(0, 8), "b": entry(8, 16)}, b"0" * 16)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:place] + data + (whole[place + len(data) :] if keep else b""))
    try:
        tensors = open_checkpoint(LocalStore(folder)).tensors
    except InputError:
        return
    assert all(0 <= tensor.start <= tensor.end <= len(whole) for tensor in tensors.values())


@pytest.mark.parametrize("file", ["../model.safetensors", "sub/model.safetensors", "pytorch_model.bin", "/etc/passwd"])
def test_an_index_names_safetensors_beside_it_only(tmp_path: Path, file: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": file}}))
    with pytest.raises(InputError, match="names the file"):
        open_checkpoint(LocalStore(tmp_path))


def test_a_tensor_lies_in_one_shard_and_in_the_one_that_the_index_says(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "twice", [{"a": np.ones(2)}, {"a": np.ones(2), "b": np.ones(2)}])
    (index := tmp_path / "twice" / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})
    )
    with pytest.raises(InputError, match=r"a lies in model-00001-of-00002\.safetensors and in model-00002"):
        open_checkpoint(LocalStore(tmp_path / "twice"))
    write_checkpoint(tmp_path / "swapped", [{"a": np.ones(2)}, {"b": np.ones(2)}])
    (tmp_path / "swapped" / index.name).write_text(index.read_text().replace('"a"', '"c"').replace('"b"', '"a"').replace('"c"', '"b"'))
    with pytest.raises(InputError, match=r"names b in model-00001.*, but it lies in model-00002"):
        open_checkpoint(LocalStore(tmp_path / "swapped"))


def test_stores_that_are_not_there_are_named(tmp_path: Path) -> None:
    for address, message in (
        ("relative", "Allowed: an absolute path"),
        (str(tmp_path / "none"), "is not a folder on this machine"),
        ("nothing://x/y", "nothing://x/y could not be read"),
    ):
        with pytest.raises(InputError, match=message):
            open_store(address)
    (tmp_path / "secret").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    assert read_small(LocalStore(tmp_path), "link") == b"x"
