"""What a trial is includes the adapter that it continues from: by its content, wherever it lies, and with what it is on each module."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossmesh.adapters.continuing import modules_of
from crossmesh.adapters.initial import initial_lora
from crossmesh.adapters.peft_config import AdapterConfig
from crossmesh.adapters.peft_format import adapter_digest, store_adapter
from crossmesh.errors import InputError
from crossmesh.models.families import read_architecture
from crossmesh.models.lora import lora_modules
from crossmesh.models.weights import ModelFolder, fetch_model
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.spec.services import StorageSpec
from crossmesh.spec.serving import ServeSpec
from crossmesh.spec.training import DataSpec, LoraSpec, ModelSpec, OptimSpec, RtlSpec
from crossmesh.sweep.trial import Prepared, prepare

OWN = LoraSpec(rank=4, alpha=8.0, targets=("q", "up"), rank_pattern={"up_proj": 2})
NO_TRACKER: Any = None


@pytest.fixture
def spec(tmp_path: Path) -> ExperimentSpec:
    data = DataSpec(rtl=RtlSpec(train_rows=8, heldout_rows=2, hard_rows=0))
    model = ModelSpec("llama", "random://tiny_llama@0")
    return ExperimentSpec(model=model, data=data, optim=OptimSpec(steps=2), storage=StorageSpec(str(tmp_path / "storage")))


@pytest.fixture
def model(spec: ExperimentSpec, tmp_path: Path) -> ModelFolder:
    return fetch_model(spec.model, tmp_path / "cache")


def write(model: ModelFolder, folder: Path, seed: int, lora: LoraSpec = OWN) -> Path:
    modules = lora_modules(lora, read_architecture(model.path))
    store_adapter(folder, initial_lora(modules, seed), AdapterConfig.of(modules, 0.0, "base"), model.weights_digest)
    return folder


def prepared(spec: ExperimentSpec, model: ModelFolder, **lora: Any) -> Prepared:
    return prepare(replace(spec, lora=LoraSpec(**lora)), model, NO_TRACKER)


def test_the_adapter_is_science_by_its_content(spec: ExperimentSpec, model: ModelFolder, tmp_path: Path) -> None:
    first, copy, other = (write(model, tmp_path / name, seed) for name, seed in (("first", 1), ("copy", 1), ("other", 2)))
    one = prepared(spec, model, adapter=str(first))
    science = one.science.contents["lora"]
    assert (science["rank"], science["alpha"], science["adapter"]) == (4, 8.0, adapter_digest(first))
    assert set(science["other_ranks"].values()) == {2}
    assert all(name.endswith(("q_proj", "up_proj")) for name in science["modules"])
    assert one.identity == prepared(spec, model, adapter=str(copy)).identity
    from_the_seed = {"rank": 4, "alpha": 8.0, "targets": OWN.targets, "rank_pattern": OWN.rank_pattern}
    others = [prepared(spec, model, adapter=str(other)), prepared(spec, model, **from_the_seed)]
    assert len({one.identity, *(trial.identity for trial in others)}) == 3
    assert one.start is not None
    assert modules_of(LoraSpec(), one.start.folder, read_architecture(model.path)) == lora_modules(OWN, read_architecture(model.path))


def test_a_pattern_is_science_by_what_it_comes_to(spec: ExperimentSpec, model: ModelFolder) -> None:
    by_name, by_expression = ({"q_proj": 2, "k_proj": 2}, {r".*\.[qk]_proj": 2})
    assert prepared(spec, model, rank_pattern=by_name).identity == prepared(spec, model, rank_pattern=by_expression).identity


def test_an_adapter_that_no_server_would_take_is_refused_before_it_is_trained(
    spec: ExperimentSpec, model: ModelFolder, tmp_path: Path
) -> None:
    large = write(model, tmp_path / "large", 0, LoraSpec(rank=80, targets=("q",)))
    with pytest.raises(InputError, match=r"serve\.max_lora_rank=64 is below the rank 80 of lora\.adapter="):
        prepared(spec, model, adapter=str(large))
    small = replace(spec, serve=ServeSpec(max_lora_rank=8), lora=LoraSpec(adapter=str(write(model, tmp_path / "small", 0))))
    assert prepare(small, model, NO_TRACKER).science.contents["lora"]["rank"] == 4
