"""Training through Ray Train as the driver sees it: interruptions, failures and what is left behind."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossmesh.adapters.peft_format import adapter_digest, read_adapter
from crossmesh.cluster.session import Session, ray_session
from crossmesh.config.services import StorageSpec
from crossmesh.config.training import DataSpec, HardwareSpec, LoraSpec, OptimSpec
from crossmesh.data.chat import ChatTokenizer
from crossmesh.data.sources import load_rows
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.models.weights.fetch import ModelFolder, fetch_model
from crossmesh.ray_cleanup import processes_of
from crossmesh.train.events import Event, WarningEvent
from crossmesh.train.launch import train

pytestmark = pytest.mark.integration

Lines = list[dict[str, Any]]


def of_kind(lines: Lines, kind: str) -> Lines:
    return [line for line in lines if line.get("kind") == kind]


def group_members(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(state[2]) == group and state[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.mark.full
@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["to the job", "to its process group, as timeout and Slurm do"])
def test_a_terminated_training_leaves_nothing_and_continues_to_the_same_end(
    send: Callable[[int, int], None], tiny: Any, tmp_path: Path, tiny_training: Lines
) -> None:
    process = tiny.start(tmp_path / "storage")
    lines: Lines = []
    for line in tiny.said(process):
        lines.append(line)
        if line.get("kind") == "StepEvent" and line["step"] == 6:
            send(process.pid, signal.SIGTERM)
    assert process.wait(timeout=60) != 0
    assert group_members(process.pid) == []
    folder = Path(lines[0]["folder"])
    assert not folder.exists()
    assert processes_of(folder) == []
    assert any("stopping after this step" in line["text"] for line in of_kind(lines, "StageEvent"))
    stopped_after = of_kind(lines, "StepEvent")[-1]["step"]
    assert 6 <= stopped_after < tiny.STEPS
    assert of_kind(lines, "CheckpointEvent")[-1]["step"] == stopped_after

    again = tiny.start(tmp_path / "storage")
    lines = list(tiny.said(again))
    assert again.wait(timeout=60) == 0
    steps = of_kind(lines, "StepEvent")
    assert [step["step"] for step in steps if step["first"]] == [1, stopped_after + 1]
    # Losses bit for bit, and with them the adapter.
    assert lines[-2]["losses"] == tiny_training[-2]["losses"]
    assert lines[-2]["adapter"] == tiny_training[-2]["adapter"]


@pytest.fixture(scope="module")
def model(tiny: Any, tiny_storage: Path) -> ModelFolder:
    return fetch_model(tiny.tiny_spec(tiny_storage).model, tiny_storage / "cache")


def test_the_adapter_is_what_was_trained(tiny_training: Lines, tiny_storage: Path) -> None:
    arrays, config = read_adapter(tiny_storage / "run" / "adapter")
    assert config.rank == 16
    assert len(config.modules) == 4 * 7
    assert len(arrays) == 2 * 4 * 7
    # B starts at zero: it has moved.
    assert all(abs(array).max() > 0 for name, array in arrays.items() if "lora_B" in name)
    losses = [loss for _, loss in tiny_training[-2]["losses"]]
    assert losses[-1] < losses[0] - 1.0


def test_a_finished_run_is_returned_at_once_without_ray(
    tiny: Any, tiny_training: Lines, tiny_storage: Path, model: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crossmesh.train.launch.ray_session", pytest.fail)
    result = train(tiny.tiny_spec(tiny_storage, steps=tiny.STEPS), model, tiny_storage / "run", pytest.fail)
    assert [list(pair) for pair in result.losses] == tiny_training[-2]["losses"]
    assert result.adapter_digest == tiny_training[-2]["adapter"]
    assert result.final_loss == result.losses[-1][1]
    assert result.tokens == sum(event.real_tokens for event in result.history)


def test_a_finished_run_of_another_trial_is_refused(tiny: Any, tiny_training: Lines, tiny_storage: Path, model: ModelFolder) -> None:
    with pytest.raises(InputError, match="holds a finished run of another trial"):
        train(tiny.tiny_spec(tiny_storage, steps=tiny.STEPS - 1), model, tiny_storage / "run", pytest.fail)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with ray_session(StorageSpec(str(tmp_path_factory.mktemp("session")))) as opened:
        yield opened


def ignore(event: Event) -> None:
    """Hear nothing."""


def test_hardware_that_is_not_there_is_refused_before_anything_starts(
    tiny: Any, session: Session, tmp_path: Path, model: ModelFolder
) -> None:
    spec = replace(tiny.tiny_spec(tmp_path), hardware=HardwareSpec("gpu_2xh100"))
    with pytest.raises(InputError, match=r"GPU chips asked for: 2 .*this machine has 0"):
        train(spec, model, tmp_path / "run", pytest.fail)
    assert not (tmp_path / "run").exists()


def test_a_user_error_in_the_worker_is_the_same_one_message_here(tiny: Any, session: Session, tmp_path: Path, model: ModelFolder) -> None:
    spec = replace(tiny.tiny_spec(tmp_path), data=DataSpec(source=str(tmp_path / "nowhere.jsonl")))
    with pytest.raises(InputError) as direct:
        load_rows(spec.data, ChatTokenizer(model.path), tmp_path)
    with pytest.raises(InputError) as through_ray:
        train(spec, model, tmp_path / "run", ignore)
    assert str(through_ray.value) == str(direct.value)
    assert "nowhere.jsonl" in str(direct.value)
    assert "Traceback" not in str(direct.value)


def test_a_failure_in_the_worker_is_one_message_that_names_the_log(tiny: Any, session: Session, tmp_path: Path, model: ModelFolder) -> None:
    tiny.write_rows(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").touch()  # A file where a folder is expected: nobody has thought of that.
    with pytest.raises(CrossmeshError, match=r"^The training worker failed: .*worker\.log.*run again to continue") as failure:
        train(tiny.tiny_spec(tmp_path), model, tmp_path / "run", ignore)
    assert "\n" not in str(failure.value)
    log = next((tmp_path / "run" / "attempts").glob("*/worker.log")).read_text()
    assert log.startswith("Traceback")
    assert "checkpoint.py" in log


@pytest.mark.full
def test_a_damaged_adapter_is_exported_again_from_the_last_checkpoint(
    tiny: Any, session: Session, tmp_path: Path, tiny_training: Lines, tiny_storage: Path, model: ModelFolder
) -> None:
    shutil.copytree(tiny_storage / "run", tmp_path / "run")
    weights = tmp_path / "run" / "adapter" / "adapter_model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    events: list[Event] = []
    result = train(tiny.tiny_spec(tiny_storage, steps=tiny.STEPS), model, tmp_path / "run", events.append)
    assert any(isinstance(event, WarningEvent) and "is damaged" in event.text for event in events)
    assert result.adapter_digest == adapter_digest(tmp_path / "run" / "adapter") == tiny_training[-2]["adapter"]


@pytest.mark.full
def test_full_fine_tuning_leaves_a_model_that_is_a_base_itself(tiny: Any, session: Session, tmp_path: Path, model: ModelFolder) -> None:
    tiny.write_rows(tmp_path)
    spec = replace(tiny.tiny_spec(tmp_path), lora=LoraSpec(rank=0), optim=OptimSpec(steps=6, learning_rate=1e-3))
    result = train(spec, model, tmp_path / "run", ignore)
    assert result.final_loss < result.losses[0][1]
    assert result.adapter_folder == tmp_path / "run" / "model"
    trained = fetch_model(replace(spec.model, weights=str(result.adapter_folder)), tmp_path)
    assert trained.tokenizer_digest == model.tokenizer_digest
    assert trained.weights_digest != model.weights_digest
    assert train(spec, model, tmp_path / "run", pytest.fail) == result
    weights = tmp_path / "run" / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    events: list[Event] = []
    assert train(spec, model, tmp_path / "run", events.append) == result
    assert any(isinstance(event, WarningEvent) and "is damaged" in event.text for event in events)
