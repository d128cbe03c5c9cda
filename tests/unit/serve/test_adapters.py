"""Adapters are made ready for the engine only on the base they belong to, and again when their copy is damaged."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from crossmesh.adapters.peft_format import adapter_digest, read_adapter, write_adapter
from crossmesh.config.training import ModelSpec
from crossmesh.errors import InputError
from crossmesh.models.weights.fetch import fetch_model
from crossmesh.serve.adapters import ServedBase
from crossmesh.serve.loading import HotLoading
from crossmesh.verify.random_adapters import write_random_adapter

OURS = "a" * 64


def base_of(family: str, root: Path) -> ServedBase:
    model = fetch_model(ModelSpec(family=family, weights=f"random://tiny_{family}@0"), root / "cache").path
    return ServedBase("base", model, OURS, root / "forms")


@pytest.fixture
def base(tmp_path: Path) -> ServedBase:
    return base_of("gemma4", tmp_path)


def write(base: ServedBase, folder: Path, *, trained_on: str = "") -> Path:
    write_random_adapter(base.folder, folder, 0, rank=4)
    if trained_on:
        arrays, config = read_adapter(folder)
        shutil.rmtree(folder)
        write_adapter(folder, arrays, rank=4, alpha=4, dropout=0, base_model="tiny", modules=config.modules, base_digest=trained_on)
    return folder


def change_config(folder: Path, **settings: object) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


def test_a_damaged_form_is_made_again(base: ServedBase, tmp_path: Path) -> None:
    source = write(base, tmp_path / "adapter", trained_on=OURS)
    served = base.adapter("mine", source)
    assert (served.name, served.rank) == ("mine", 4)
    weights = served.folder / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4] + b"\x00\x00\x80\x3f")  # A number was changed: the file can still be read.
    assert base.adapter("mine", source) == served
    assert weights.read_bytes() == whole


def test_the_form_is_the_engines_and_the_given_folder_stays_as_it_is(base: ServedBase, tmp_path: Path) -> None:
    source = write(base, tmp_path / "adapter")
    before = adapter_digest(source)
    served = base.adapter("mine", source)
    more = set(read_adapter(served.folder)[1].modules) - set(read_adapter(source)[1].modules)
    assert more, "tiny Gemma 4 shares K and V in some layers, whose adapter the engine needs under both names"
    assert all(module.endswith("v_proj") for module in more)
    assert adapter_digest(source) == before


def test_the_rank_is_the_largest_of_the_modules(base: ServedBase, tmp_path: Path) -> None:
    source = write(base, tmp_path / "adapter")
    change_config(source, r=2, rank_pattern={".*": 4})
    assert base.adapter("mine", source).rank == 4


def test_an_adapter_of_another_shape_is_refused_also_when_it_was_served_before(base: ServedBase, tmp_path: Path) -> None:
    source = write(base, tmp_path / "adapter")
    base.adapter("mine", source)
    with pytest.raises(InputError, match=r"Adapter 'mine': .* adapts .* adapter of another base"):
        replace(base_of("llama", tmp_path), weights_digest="b" * 64).adapter("mine", source)


def test_an_adapter_of_other_weights_is_refused_when_it_says_so(base: ServedBase, tmp_path: Path) -> None:
    source = write(base, tmp_path / "adapter", trained_on="b" * 64)
    with pytest.raises(InputError, match=r"Adapter 'mine': .* was trained on other weights than these: it says bbbb.*they are aaaa"):
        base.adapter("mine", source)
    assert not base.forms.exists()


def test_dora_is_refused_and_nothing_is_written(base: ServedBase, tmp_path: Path) -> None:
    source = write(base, tmp_path / "adapter")
    change_config(source, use_dora=True)
    with pytest.raises(InputError, match=r"Adapter 'mine': .*use_dora=True cannot be used"):
        base.adapter("mine", source)
    assert not base.forms.exists()


@pytest.mark.parametrize("name", ["base", "", " "])
def test_an_adapter_has_a_name_of_its_own(base: ServedBase, name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be called"):
        base.adapter(name, tmp_path)


@pytest.fixture
def loading(base: ServedBase, tmp_path: Path) -> HotLoading:
    allowed = tmp_path / "allowed"
    write(base, allowed / "adapter")
    return HotLoading(base, (allowed,), 4)


def test_adapters_are_loaded_from_below_the_roots(loading: HotLoading, tmp_path: Path) -> None:
    assert loading.adapter("new", str(tmp_path / "allowed" / "adapter")).name == "new"


@pytest.mark.parametrize(
    "path", ["{root}/outside", "{root}/allowed/../outside", "{root}/allowed/link", "allowed/adapter", "", "{root}/not-there"]
)
def test_other_paths_are_refused_alike(loading: HotLoading, base: ServedBase, path: str, tmp_path: Path) -> None:
    write(base, tmp_path / "outside")
    (tmp_path / "allowed" / "link").symlink_to(tmp_path / "outside")
    given = path.format(root=tmp_path)
    with pytest.raises(InputError) as caught:
        loading.adapter("new", given)
    said = f"lora_path={given!r} is not allowed. Allowed: the absolute path of a PEFT adapter folder in storage.root, or in a folder that"
    assert str(caught.value).startswith(said)


def test_what_the_engine_has_no_memory_for_is_refused(loading: HotLoading, tmp_path: Path) -> None:
    path = str(tmp_path / "allowed" / "adapter")
    with pytest.raises(InputError, match=r"'new' has rank 4, over serve\.max_lora_rank=2"):
        replace(loading, rank=2).adapter("new", path)
    with pytest.raises(InputError, match=r"no room for adapters\. Start it with serve\.max_loras=1"):
        replace(loading, rank=0).adapter("new", path)
