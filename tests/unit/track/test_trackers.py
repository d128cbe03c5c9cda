"""The trackers by name: the one that keeps nothing, one of another package, and several as one."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import jsonlines_tracker
from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.errors import InputError
from crossmesh.track.run_log import TrackingError
from crossmesh.track.tracker import RunQuery, RunSettings, Tracker
from crossmesh.track.trackers import TRACKERS, open_tracker

BOTH = TrackingSpec(trackers=("none", "jsonlines"))


@pytest.fixture
def storage(tmp_path: Path) -> StorageSpec:
    return StorageSpec(str(tmp_path / "storage"))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package with the tracker `jsonlines`."""
    metadata = tmp_path / "installed" / "other-1.0.dist-info"
    metadata.mkdir(parents=True)
    shutil.copy(jsonlines_tracker.__file__, tmp_path / "installed" / "other_tracker.py")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[crossmesh.trackers]\njsonlines = other_tracker:JsonLinesTracker\n")
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    TRACKERS.__dict__.pop("_found", None)
    yield
    TRACKERS.__dict__.pop("_found", None)


def lines(storage: StorageSpec) -> list[list[dict]]:
    """What each run of `jsonlines` was told, oldest first."""
    files = [[json.loads(line) for line in file.open()] for file in (storage.path / "jsonlines" / "crossmesh").glob("*.jsonl")]
    return sorted(files, key=lambda told: told[0]["at"])


def train(tracker: Tracker, folder: Path, parent: str | None = None) -> str:
    """A run with one of everything."""
    run = tracker.start("torch", "train", parent=parent, identity="id-1", params=RunSettings({"optim": {"steps": 2}}, emulated=True))
    tracker.records(run, {"a": 1}, {"b": 2})
    tracker.dataset(run, "rows", "d" * 64, "https://me:secret@host/rows", "training", {"rows": 3})
    for step, loss in enumerate((2.0, 1.0)):
        tracker.metrics(run, {"train/loss": loss}, step)
    (folder / "adapter").mkdir(parents=True, exist_ok=True)
    (folder / "adapter" / "weights.bin").write_bytes(b"\x01")
    tracker.artifact_folder(run, folder / "adapter", "adapter")
    tracker.register(run, "adapter", "base-lora", {"k": "v"})
    tracker.finish(run)
    return run


def test_none_answers_within_the_job_and_keeps_nothing(storage, tmp_path):
    tracker = open_tracker(TrackingSpec(trackers=("none",)), storage)
    parent = tracker.start("sweep", "sweep")
    run = train(tracker, tmp_path, parent)
    found = tracker.find("id-1")
    assert found is not None
    assert (found.run_id, found.status, found.emulated, found.params["optim.steps"]) == (run, "FINISHED", True, "2")
    assert found.metrics["train/loss"] == 1.0
    assert tracker.history(run, "train/loss") == ((0, 2.0), (1, 1.0))
    assert tracker.means([run], "train/loss") == {run: 1.5}
    assert [one.run_id for one in tracker.children(parent)] == [run]
    assert [one.run_id for one in tracker.recent("train", without={"optim.steps": "2"})] == []
    assert tracker.matching(run[:6])[0].run_id == run
    assert tracker.read_json(run, "records/science.json") == {"a": 1}
    (tmp_path / "copy").mkdir()
    assert (tracker.download(run, "adapter", tmp_path / "copy") / "weights.bin").read_bytes() == b"\x01"
    assert not storage.path.exists()
    assert open_tracker(TrackingSpec(trackers=("none",)), storage).find("id-1") is None
    assert not tracker.has_run("f" * 32)
    with pytest.raises(TrackingError, match="does not exist"):
        tracker.run("f" * 32)


def test_a_metric_has_one_value_a_step_and_what_is_no_number_is_left_out(storage):
    said: list[str] = []
    tracker = open_tracker(TrackingSpec(trackers=("none",)), storage, said.append)
    run = tracker.start("torch", "train")
    tracker.metrics(run, {"loss": 1.0, "note": "fast"}, 0)  # type: ignore[dict-item]
    tracker.metrics(run, {"loss": 9.0}, 0)
    assert tracker.history(run, "loss") == ((0, 1.0),)
    assert said == ["The metric 'note' is not a number ('fast'): it is left out"]


@pytest.mark.usefixtures("package")
def test_a_tracker_of_another_package_is_told_all_that_the_first_is(storage, tmp_path):
    tracker = open_tracker(BOTH, storage)
    parent = tracker.start("sweep", "sweep")
    run = train(tracker, tmp_path, parent)
    above, told = lines(storage)
    mirror = tracker.run(run).tags["crossmesh.mirror.jsonlines"]
    assert told[0]["run"]["name"] == "torch"
    assert told[0]["run"]["params"] == {"optim.steps": "2", "emulated": "true"}
    assert told[0]["run"]["tags"]["crossmesh.mirror.first"] == run
    # Under the run that is above it there, not under the first tracker's.
    assert told[0]["run"]["tags"]["mlflow.parentRunId"] == tracker.run(parent).tags["crossmesh.mirror.jsonlines"]
    assert above[0]["run"]["tags"]["crossmesh.mirror.first"] == parent
    assert [(one["step"], one["metrics"]) for one in told if "metrics" in one] == [(0, {"train/loss": 2.0}), (1, {"train/loss": 1.0})]
    assert told[-1]["status"] == "FINISHED"
    artifacts = storage.path / "jsonlines" / "crossmesh" / mirror
    assert json.loads((artifacts / "records" / "science.json").read_text()) == {"a": 1}
    assert json.loads((artifacts / "datasets" / "training.json").read_text())["profile"] == {"rows": 3}
    assert "secret" not in (artifacts / "datasets" / "training.json").read_text()
    assert (artifacts / "adapter" / "weights.bin").read_bytes() == b"\x01"


@pytest.mark.usefixtures("package")
def test_a_resumed_run_goes_on_in_each_tracker_and_is_started_again_where_it_is_lost(storage):
    tracker = open_tracker(BOTH, storage)
    run = tracker.start("torch", "train", params={"a": 1})
    tracker.metrics(run, {"loss": 2.0}, 0)
    tracker.leave(run)
    assert tracker.resume(run) is not None
    tracker.metrics(run, {"loss": 1.0}, 1)
    (told,) = lines(storage)
    assert [one.get("step") for one in told if "metrics" in one] == [0, 1]
    shutil.rmtree(storage.path / "jsonlines")
    assert tracker.resume(run) is not None
    (again,) = lines(storage)
    assert again[0]["run"]["params"] == {"a": "1"}
    assert tracker.resume("f" * 32) is None


@pytest.mark.usefixtures("package")
def test_what_another_tracker_fails_to_keep_is_reported_once_and_ends_nothing(storage):
    said: list[str] = []
    tracker = open_tracker(BOTH, storage, said.append)
    run = tracker.start("torch", "train")
    shutil.rmtree(storage.path / "jsonlines")
    for step in range(3):
        tracker.metrics(run, {"loss": 1.0}, step)
    tracker.finish(run)
    assert len(tracker.history(run, "loss")) == 3
    (message,) = said
    assert message.startswith(f"The tracker 'jsonlines' does not take a record of run {run} (FileNotFoundError: ")


@pytest.mark.usefixtures("package")
def test_the_first_tracker_is_one_that_can_be_read(storage):
    with pytest.raises(InputError, match=r"the tracker 'jsonlines' cannot be read.* tracking.trackers=\[mlflow,jsonlines\]"):
        open_tracker(TrackingSpec(trackers=("jsonlines",)), storage)


def test_names_that_no_tracker_has(storage):
    with pytest.raises(InputError, match=r"There is no tracker 'mlfow'\. Did you mean 'mlflow'\?"):
        open_tracker(TrackingSpec(trackers=("mlfow",)), storage)
    for trackers in ((), ("none", "none")):
        with pytest.raises(ValueError, match="one name or more, each once"):
            TrackingSpec(trackers=trackers)


def test_sampling_and_training_log_to_one_run_of_none_at_the_same_time(storage):
    tracker = open_tracker(TrackingSpec(trackers=("none",)), storage)
    run = tracker.start("torch", "train")
    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(tracker.metrics, run, {f"system/{number}": 1.0}, 0) for number in range(2_000)]
        while not all(one.done() for one in writing):
            tracker.search(RunQuery())
    assert all(one.exception() is None for one in writing)
    assert len(tracker.run(run).metrics) == 2_000
