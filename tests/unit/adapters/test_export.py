"""What is exported: each mode's folder and digests, where adapters are found, and what a model card and a publication need."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint_folders import write_checkpoint, write_peft
from crossmesh.adapters.export import Exported, export
from crossmesh.adapters.hub import prepare_publication
from crossmesh.adapters.initial import lora_names
from crossmesh.adapters.model_card import Licence, base_licence, model_card
from crossmesh.adapters.peft_format import adapter_digest, open_adapter, read_adapter
from crossmesh.adapters.proof import Proof, read_proof
from crossmesh.adapters.sources import FoundAdapter, find_adapter
from crossmesh.config.services import StorageSpec
from crossmesh.errors import InputError
from crossmesh.files import digest_file
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.targets import expand_targets
from crossmesh.models.weights.fetch import folder_digests
from crossmesh.models.weights.random_weights import write_random
from crossmesh.models.weights.stores import LocalStore
from crossmesh.track.tracked_run import TrackedRun


def no_tracker() -> Any:
    raise AssertionError("MLflow is not needed here")


def no_progress(done: int, total: int) -> None:
    pass


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    write_random("tiny_gemma4@0", folder)
    return folder


@pytest.fixture
def adapter(tmp_path: Path, base: Path) -> Path:
    random = np.random.default_rng(0)
    pairs = {}
    for target in expand_targets(read_architecture(base), ("q", "k", "down")):
        a = random.standard_normal((8, target.in_features), dtype=np.float32)
        pairs[target.hf] = (a, random.standard_normal((target.out_features, 8), dtype=np.float32))
    write_peft(tmp_path / "adapter", pairs, use_rslora=True)
    return tmp_path / "adapter"


def test_an_adapter_is_exported_byte_for_byte(tmp_path: Path, base: Path, adapter: Path) -> None:
    exported = export("adapter", open_adapter(adapter), LocalStore(base), tmp_path / "out", no_progress)
    names = ["adapter_config.json", "adapter_model.safetensors"]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [*names, "crossmesh.json"]
    assert all((tmp_path / "out" / name).read_bytes() == (adapter / name).read_bytes() for name in names)
    manifest = json.loads((tmp_path / "out" / "crossmesh.json").read_text())
    assert manifest["sha256"] == {name: digest_file(adapter / name) for name in names}
    assert exported.adapter_digest == exported.digests["adapter"] == adapter_digest(adapter)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_the_serving_export_has_v_where_k_is_also_v(tmp_path: Path, base: Path, adapter: Path) -> None:
    exported = export("serving", open_adapter(adapter), LocalStore(base), tmp_path / "out", no_progress)
    arrays, config = read_adapter(tmp_path / "out")
    key, value = "model.layers.5.self_attn.k_proj", "model.layers.5.self_attn.v_proj"
    assert set(config.modules) - {*open_adapter(adapter).config.modules} == {value}
    assert all(np.array_equal(arrays[a], arrays[b]) for a, b in zip(lora_names(key), lora_names(value), strict=True))
    assert config.rslora
    assert config.scale(value) == 16 / 8**0.5
    assert exported.digests["adapter"] != exported.adapter_digest


def test_the_merged_export_reads_the_base_as_training_does(tmp_path: Path, base: Path, adapter: Path) -> None:
    exported = export("merged", open_adapter(adapter), LocalStore(base), tmp_path / "out", no_progress)
    assert exported.digests["base_weights"] == folder_digests(base).weights_digest
    assert exported.digests["weights"] == folder_digests(tmp_path / "out").weights_digest != exported.digests["base_weights"]
    assert folder_digests(tmp_path / "out").tokenizer_digest == folder_digests(base).tokenizer_digest


@pytest.mark.parametrize("mode", ["adapter", "serving", "merged"])
def test_no_mode_exports_an_adapter_of_another_base(tmp_path: Path, adapter: Path, mode: str) -> None:
    write_checkpoint(tmp_path / "other", [{"model.layers.0.mlp.down_proj.weight": np.ones((3, 3), np.float32)}])
    with pytest.raises(InputError, match="an adapter of another base"):
        export(mode, open_adapter(adapter), LocalStore(tmp_path / "other"), tmp_path / "out", no_progress)
    assert not list(tmp_path.glob("*out*"))


def test_adapters_are_found_by_folder_and_by_trial(tmp_path: Path) -> None:
    storage = StorageSpec(root=str(tmp_path))
    trial = tmp_path / "trials" / "0123456789abcdef"
    (trial / "adapter").mkdir(parents=True)
    (trial / "run.json").write_text('{"run_id": "77"}')
    found = FoundAdapter(trial / "adapter", "77")
    assert find_adapter("0123456789abcdef", storage, no_tracker) == find_adapter("0123456789abcdef" * 4, storage, no_tracker) == found
    assert find_adapter(str(trial / "adapter"), storage, no_tracker) == FoundAdapter(trial / "adapter", "")
    for given, message in (
        ("", "adapter is not given"),
        ("nowhere", "does not exist on this machine"),
        ("f" * 16, "Finish the trial first"),
    ):
        with pytest.raises(InputError, match=message):
            find_adapter(given, storage, no_tracker)


def test_the_adapter_of_a_run_is_fetched_anew(tmp_path: Path, adapter: Path) -> None:
    class Runs:
        uri, ui_command = "sqlite:////mlflow.db", "mlflow ui"

        def require_kept(self, key: str, value: object) -> None:
            """Runs outlive their job."""

        def has_run(self, run_id: str) -> bool:
            return run_id == "a" * 32

        def download(self, run_id: str, path: str, folder: Path) -> Path:
            assert (run_id, path, list(folder.iterdir())) == ("a" * 32, "adapter", [])
            return adapter.rename(folder / "adapter")

    found = find_adapter("a" * 32, StorageSpec(root=str(tmp_path)), Runs)
    assert found == FoundAdapter(tmp_path / "cache" / "adapters" / ("a" * 32) / "adapter", "a" * 32)
    assert open_adapter(found.folder).config.rank == 8
    with pytest.raises(InputError, match=f"lora.adapter='{'b' * 32}': sqlite:////mlflow.db has no run of this id"):
        find_adapter("b" * 32, StorageSpec(root=str(tmp_path)), Runs, "lora.adapter")


def test_a_proof_counts_for_its_adapter_when_it_passed(tmp_path: Path) -> None:
    path = tmp_path / "proof.json"
    record = {"check": "exchange", "passed": True, "figures": {"digests": {"adapter": "abc"}}}
    path.write_text(json.dumps(record))
    assert read_proof(str(path), "abc", force=False) == Proof(True, record)
    with pytest.raises(InputError, match="proves the adapter abc, this one is abd"):
        read_proof(str(path), "abd", force=False)
    assert read_proof(str(path), "abd", force=True) == Proof(False, record)
    for change in ({"passed": False}, {"check": "packing"}, {"passed": "true"}):
        path.write_text(json.dumps(record | change))
        with pytest.raises(InputError, match="has not passed"):
            read_proof(str(path), "abc", force=False)
    path.write_text("{}")
    with pytest.raises(InputError, match=r"proof\.json cannot be read"):
        read_proof(str(path), "abc", force=True)


def test_the_licence_is_that_of_the_bases_own_card_or_given(tmp_path: Path) -> None:
    base = LocalStore(tmp_path)
    with pytest.raises(InputError, match="says a licence"):
        base_licence(base, "")
    (tmp_path / "README.md").write_text("---\nlicense: gemma\nlicense_link: https://example.org/terms\n---\n# text")
    assert base_licence(base, "") == Licence("gemma", "https://example.org/terms")
    assert base_licence(base, "mit") == Licence("mit")
    for text in ("no metadata", "---\nlicense: [\n---\n", "---\ntags: [a]\n---\n"):
        (tmp_path / "README.md").write_text(text)
        with pytest.raises(InputError, match="says a licence"):
            base_licence(base, "")


def test_a_card_says_base_licence_digests_proof_and_how_it_was_trained(tmp_path: Path, base: Path, adapter: Path) -> None:
    exported = Exported("merged", tmp_path, "hf://them/base@0123", "abc", {"weights": "def"}, 3, 16, 32.0)
    run = TrackedRun(
        "77",
        "torch",
        "FINISHED",
        {"crossmesh.science": "sci"},
        {"lora.rank": "16", "data.source": "a|b", "storage.root": "/home/me"},
        {"train/final_loss": 0.25, "system/cpu": 3.0},
    )
    card = model_card(exported, run, Licence("gemma"), Proof(True, {"check": "exchange", "passed": True, "figures": {"long": 1}}))
    metadata = card.split("---")[1].splitlines()
    for line in ("base_model: them/base", "base_model_relation: finetune", "library_name: transformers", "license: gemma"):
        assert line in metadata
    for line in ("| trained adapter | abc |", "| weights | def |", "| crossmesh.science | sci |", "| lora.rank | 16 |"):
        assert line in card
    for line in (
        "| train/final_loss | 0.25 |",
        "| data.source | a\\|b |",
        "## Proof of exchange: passed",
        "The licence of the base holds: gemma.",
    ):
        assert line in card
    for absent in ("/home/me", "system/cpu", "figures"):
        assert absent not in card
    with pytest.raises(InputError, match="owner/name"):
        prepare_publication("no-owner", open_adapter(adapter), LocalStore(base), None, proof="", licence="mit", force=True)
