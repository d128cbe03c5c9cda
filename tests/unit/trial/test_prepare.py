"""What a trial is includes the adapter that it continues from: by its content, wherever it lies, and with what it is on each module."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossmesh.adapters.init_adapter import adapted_modules
from crossmesh.adapters.initial import initial_lora
from crossmesh.adapters.peft_config import AdapterConfig
from crossmesh.adapters.peft_format import adapter_digest, store_adapter
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.fingerprint import Record
from crossmesh.config.services import StorageSpec
from crossmesh.config.serving import ServeSpec
from crossmesh.config.training import BatchSpec, CheckpointSpec, DataSpec, LoraSpec, ModelSpec, OptimSpec, PackingSpec, RtlSpec
from crossmesh.errors import InputError
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.lora import lora_modules
from crossmesh.models.weights.fetch import ModelFolder, fetch_model
from crossmesh.track.tracked_run import TAG_IDENTITY, TrackedRun
from crossmesh.trial.trial import Prepared, prepare

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
    assert one.init_adapter is not None
    assert adapted_modules(LoraSpec(), one.init_adapter.folder, read_architecture(model.path)) == lora_modules(
        OWN, read_architecture(model.path)
    )


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


def rewritten(model: ModelFolder, folder: Path, name: str, change: Callable[[str], str]) -> ModelFolder:
    """A copy of the model whose file `name` is changed."""
    shutil.copytree(model.path, folder, ignore=shutil.ignore_patterns("crossmesh.json"))
    text = (folder / name).read_text()
    (folder / name).write_text(change(text))
    assert change(text) != text
    return fetch_model(ModelSpec("llama", str(folder)), folder.parent / "cache")


def indented(text: str) -> str:
    return json.dumps(json.loads(text), indent=7, ensure_ascii=False)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    ("name", "change", "same"),
    [
        ("chat_template.jinja", lambda text: "{#- Says nothing. -#}" + text, True),
        ("tokenizer.json", indented, True),
        ("chat_template.jinja", lambda text: "Read this. " + text, False),
    ],
)
def test_files_are_science_by_what_the_model_sees_of_them(
    spec: ExperimentSpec, model: ModelFolder, tmp_path: Path, name: str, change: Callable[[str], str], same: bool, full: bool
) -> None:
    lora = LoraSpec(rank=0) if full else LoraSpec(rank=4)
    one = prepare(replace(spec, lora=lora), model, NO_TRACKER)
    other = prepare(replace(spec, lora=lora), rewritten(model, tmp_path / "other", name, change), NO_TRACKER)
    assert (one.science.digest == other.science.digest) is same
    assert (one.science.contents["data"]["digest"] == other.science.contents["data"]["digest"]) is same
    # A wholly trained model takes the files along: it is a trial of its own, and not found done.
    assert (one.identity == other.identity) is (same and not full)


def test_limits_and_seeds_are_science_by_the_rows_and_steps_that_come_of_them(spec: ExperimentSpec, model: ModelFolder) -> None:
    def science(**data: Any) -> str:
        return prepare(replace(spec, data=replace(spec.data, **data)), model, NO_TRACKER).science.digest

    longest = prepare(spec, model, NO_TRACKER).lengths.longest
    assert len({science(max_length=longest), science(max_length=longest + 1), science(max_length=1900), science(max_length=2000)}) == 1
    assert science(max_length=longest - 1, max_dropped=0.9) != science()
    assert science(seed=1) != science()
    alone = {"max_rows": 1}
    assert science(**alone, seed=1) == science(**alone, seed=2)  # One row has one order.


def test_a_stream_is_science_by_the_rows_that_share_a_step(spec: ExperimentSpec, model: ModelFolder) -> None:
    more = replace(spec, data=replace(spec.data, rtl=RtlSpec(train_rows=32, heldout_rows=2, hard_rows=0)), optim=OptimSpec(steps=3))
    longest = prepare(more, model, NO_TRACKER).lengths.longest
    data = replace(more.data, max_length=longest)

    def prepared_with(mode: str, rows: int = 0, window: int = 32) -> Prepared:
        packing = PackingSpec(mode, length=rows * longest, window=window)
        return prepare(replace(more, data=data, batch=BatchSpec(size=2), packing=packing), model, NO_TRACKER)

    stream, longer, none = prepared_with("stream", 2), prepared_with("stream", 3), prepared_with("none")
    assert len({one.science.digest for one in (stream, longer, none)}) == 3
    same = prepared_with("stream", 2, window=33)  # There are 32 rows: no window holds more.
    assert (same.science.digest, same.identity) == (stream.science.digest, stream.identity)
    assert prepared_with("step", 2).science.digest == none.science.digest
    alone = prepared_with("stream", 2, window=1)  # One row a sequence: the steps are those of unpacked rows.
    assert (alone.science.digest == none.science.digest, alone.identity == none.identity) == (True, False)


class Origins:
    """A tracker that has one finished run: `spec` until step 2, with this past."""

    uri = "sqlite:///there.db"

    def __init__(self, spec: ExperimentSpec, model: ModelFolder, past: str = "") -> None:
        first = prepare(spec, model, NO_TRACKER)
        self.science = Record({**first.science.contents, **({"resumed_from": past} if past else {})})
        self._files = {
            "records/science.json": self.science.contents,
            "records/system.json": first.system.contents,
            "records/spec.json": {"checkpoint": {"target": ""}},
        }

    def require_kept(self, key: str, value: object) -> None:
        """Runs outlive their job."""

    def run(self, run_id: str) -> TrackedRun:
        return TrackedRun(run_id, "torch", "FINISHED", {TAG_IDENTITY: "f" * 64})

    def read_json(self, _run_id: str, path: str) -> Any:
        return self._files[path]


@pytest.mark.parametrize("past", ["", "an earlier run"])
def test_a_run_that_goes_on_with_its_origins_settings_is_the_undisturbed_run(spec: ExperimentSpec, model: ModelFolder, past: str) -> None:
    whole = replace(spec, optim=OptimSpec(steps=4))
    origins: Any = Origins(replace(spec, optim=OptimSpec(steps=4, stop_at=2)), model, past)
    resumed = replace(whole, checkpoint=CheckpointSpec(resume_from="r" * 32))
    undisturbed, one = prepare(whole, model, NO_TRACKER), prepare(resumed, model, origins)
    expected = {**undisturbed.science.contents, **({"resumed_from": past} if past else {})}
    assert one.science.contents == expected
    assert one.resume is not None
    assert (one.resume.step, one.resume.sets_apart) == (2, past)
    if not past:
        assert (one.identity, one.order) == (undisturbed.identity, undisturbed.order)
    faster = prepare(replace(resumed, optim=OptimSpec(steps=4, learning_rate=0.5)), model, origins)
    assert faster.science.contents["resumed_from"] == origins.science.digest
    dropping = prepare(replace(resumed, lora=replace(spec.lora, dropout=0.1)), model, origins)
    assert dropping.science.contents["resumed_from"] == origins.science.digest
