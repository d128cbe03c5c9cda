"""What a run leaves says how it is served: in the adapter, in every form that is exported of it, and in the files of a whole model."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossmesh.adapters.export import export
from crossmesh.adapters.initial import initial_lora
from crossmesh.adapters.peft_format import open_adapter
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.config.training import BatchSpec, DataSpec, LoraSpec, ModelSpec, OptimSpec
from crossmesh.data.chat import ChatTokenizer
from crossmesh.data.served import serving_stops
from crossmesh.errors import InputError
from crossmesh.files import read_json
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.lora import lora_modules
from crossmesh.models.serving_defaults import ServingDefaults
from crossmesh.models.targets import all_weights
from crossmesh.models.weights.checkpoints import open_checkpoint
from crossmesh.models.weights.fetch import folder_digests
from crossmesh.models.weights.random_weights import write_random
from crossmesh.models.weights.stores import LocalStore
from crossmesh.serve.adapters import ServedBase
from crossmesh.train import worker
from crossmesh.train.train_job import TrainJob
from quadratic import QuadraticBackend

DATE = "2024-03-05T07:08"
TURNS = [{"role": "user", "content": "hello"}]
DATED = "{{ strftime_now('%d %b %Y') }} {{ style }}"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A model whose turns end with another token than its end of sequence, and whose template asks for the date."""
    folder = tmp_path / "base"
    folder.mkdir()
    write_random("tiny_llama@0", folder)
    template = folder / "chat_template.jinja"
    template.write_text(DATED + template.read_text())
    (folder / "generation_config.json").unlink(missing_ok=True)
    for name in ("config.json", "tokenizer_config.json"):
        end = {"eos_token_id": 1} if name == "config.json" else {"eos_token": "<eos>"}
        (folder / name).write_text(json.dumps({**read_json(folder / name), **end}))
    return folder


def trained(base: Path, root: Path, monkeypatch: pytest.MonkeyPatch, rank: int) -> Path:
    """Run a worker on rows that all set one variable of the template, with a backend that takes no time."""
    rows = root / "rows.jsonl"
    row = {"messages": [*TURNS, {"role": "assistant", "content": "world"}], "chat_template_kwargs": {"style": "short"}}
    rows.write_text(json.dumps(row) + "\n")
    spec = ExperimentSpec(
        model=ModelSpec(family="llama", weights=str(base)),
        data=DataSpec(source=str(rows), template_date=DATE, max_length=64, system_prompt=""),
        lora=LoraSpec(rank=rank),
        batch=BatchSpec(size=1, micro=1),
        optim=OptimSpec(steps=1, warmup_steps=0),
        storage=StorageSpec(str(root / "storage")),
        tracking=TrackingSpec(system_metrics=False),
    )
    architecture = read_architecture(base)
    random = np.random.default_rng(0)

    class Backend(QuadraticBackend):
        def export(self) -> dict[str, Any]:
            if rank:
                return initial_lora(lora_modules(spec.lora, architecture), 0)
            shapes = {tensor.name: tensor.shape for shard in open_checkpoint(LocalStore(base)).shards for tensor in shard.tensors}
            return {one.hf_name: random.random(shapes[one.hf_name], np.float32) for one in all_weights(architecture)}

    monkeypatch.setattr(worker, "make_backend", lambda _: Backend())
    job = TrainJob(spec, folder_digests(base), root / "run", root / "run" / "attempt")
    job.attempt.mkdir(parents=True)
    worker._train(job, 0, io.StringIO(), lambda: None)
    return job.trained


def ends_with(folder: Path) -> int:
    return ChatTokenizer(folder).encode("<|end|>")[0]


def test_an_adapter_carries_what_it_is_served_with_into_every_form(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = open_adapter(trained(base, tmp_path, monkeypatch, 4))
    expected = ServingDefaults((ends_with(base),), DATE, {"style": "short"})
    assert adapter.serving == expected
    for mode in ("adapter", "serving"):
        export(mode, adapter, LocalStore(base), tmp_path / mode, lambda done, total: None)
        assert open_adapter(tmp_path / mode).serving == expected
    served = ServedBase("base", base, folder_digests(base).weights_digest, tmp_path / "forms").adapter("a", adapter.folder)
    assert open_adapter(served.folder).serving == expected


@pytest.mark.parametrize("merged", [True, False], ids=["merged", "whole"])
def test_a_whole_model_stops_and_is_asked_as_it_was_trained(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merged: bool
) -> None:
    folder = trained(base, tmp_path, monkeypatch, 4 if merged else 0)
    if merged:
        adapter, folder = open_adapter(folder), tmp_path / "merged"
        export("merged", adapter, LocalStore(base), folder, lambda done, total: None)
        manifest = read_json(folder / "crossmesh.json")["sha256"]
        assert {"generation_config.json", "chat_template.jinja"} <= manifest.keys()
    asked = ChatTokenizer(folder).template.render(TURNS, {}, add_generation_prompt=True)
    assert asked == ChatTokenizer(base, DATE).template.render(TURNS, {"style": "short"}, add_generation_prompt=True)
    assert asked.startswith("05 Mar 2024 short")
    assert ends_with(base) in serving_stops(folder, ChatTokenizer(folder)) - serving_stops(base, ChatTokenizer(base))


def test_an_end_beyond_the_vocabulary_is_not_served(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocab = read_architecture(base).vocab
    monkeypatch.setattr(worker, "unserved_stops", lambda *_: (vocab,))
    folder = trained(base, tmp_path, monkeypatch, 4)
    with pytest.raises(InputError, match=rf"its answers end with token {vocab}; the vocabulary of its base has {vocab}"):
        ServedBase("base", base, folder_digests(base).weights_digest, tmp_path / "forms").adapter("a", folder)
