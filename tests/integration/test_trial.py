"""One trial on disk and in MLflow, whatever happened to either between two calls; what training does is left out."""

import dataclasses
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.fingerprint import ScienceFacts, science_record, system_record
from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.config.training import OptimSpec
from crossmesh.data.lengths import length_statistics
from crossmesh.models.placement import Placement
from crossmesh.models.weights.fetch import ModelFolder
from crossmesh.track.mlflow.views import VIEWS
from crossmesh.track.tracked_run import TAG_ADAPTER, TAG_BASE, TAG_DATA, TAG_VERSION
from crossmesh.track.tracker import Tracker
from crossmesh.track.trackers import open_tracker
from crossmesh.train.events import Event, StageEvent, StepEvent
from crossmesh.train.launch import TrainResult
from crossmesh.trial import trial

pytestmark = pytest.mark.integration

LOSSES = {1: 3.0, 2: 2.0}


class Trials:
    """Calls `run_trial` as a job does, with a training that takes no time and is found done the second time."""

    def __init__(self, root: Path) -> None:
        self.spec = ExperimentSpec(optim=OptimSpec(steps=2), storage=StorageSpec(str(root)), tracking=TrackingSpec(system_metrics=False))
        facts = ScienceFacts("w", "d", {"modules": ["q_proj"]}, (("a",), ("b",)))
        science, system = science_record(self.spec, facts), system_record(self.spec)
        self.prepared = trial.Prepared(
            ModelFolder(root, "w", "t", "c"), science, system, length_statistics([1]), (), (), "", Placement((), 0)
        )
        self.folder = root / "trials" / self.prepared.identity[:16]
        self.trained = 0
        self.during: Callable[[], object] = lambda: None
        self.received: list[Event] = []

    def train(self, _spec: ExperimentSpec, _model: ModelFolder, folder: Path, on_event: Callable[[Event], None], *_: object) -> TrainResult:
        history = tuple(StepEvent(step, 2, loss, 1.0, 0.1, 1, 1, 2, 1.0, step == 1) for step, loss in LOSSES.items())
        if not (folder / "adapter").is_dir():
            self.trained += 1
            for event in history:
                on_event(event)
            self.during()
            (folder / "adapter").mkdir(parents=True)
            (folder / "adapter" / "adapter_config.json").write_text("{}")
        return TrainResult(folder / "adapter", "digest", "d", history)

    def run(self) -> trial.Trial:
        return trial.run_trial(self.spec, self.prepared, self.tracker(), self.received.append)

    def tracker(self) -> Tracker:
        return open_tracker(self.spec.tracking, self.spec.storage)


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trials:
    found = Trials(tmp_path)
    monkeypatch.setattr(trial, "train", found.train)
    return found


def test_a_trial_whose_run_is_lost_gets_a_new_one_with_its_whole_history(trials: Trials, tmp_path: Path) -> None:
    first = trials.run()
    (trials.folder / "provenance.json").write_text('{"trained": "by this"}')
    trials.spec = dataclasses.replace(trials.spec, tracking=TrackingSpec(f"sqlite:///{tmp_path}/other.db", system_metrics=False))
    again = trials.run()
    assert (again.skipped, again.provenance, trials.trained) == (False, {"trained": "by this"}, 1)
    assert again.run_id != first.run_id
    tracker = trials.tracker()
    assert tracker.history(again.run_id, "train/loss") == tuple(LOSSES.items())
    assert tracker.history(again.run_id, "train/tokens") == ((1, 1.0), (2, 2.0))
    run = tracker.run(again.run_id)
    assert {*VIEWS[0].metrics} - {*run.metrics} == {"train/usd"}  # A CPU has no price.
    assert {*VIEWS[0].params} <= {*run.params}
    assert (run.tags[TAG_ADAPTER], run.tags[TAG_BASE], run.tags[TAG_DATA]) == ("digest", "w", "d")
    assert run.tags[TAG_VERSION].startswith("models:/pypi-")
    views = tracker.prepare_views("http://127.0.0.1:5000")
    assert next(iter(views.values())).startswith("http://127.0.0.1:5000/#/experiments/1/runs?viewStateShareKey=crossmesh-training")
    assert tracker.prepare_views("http://127.0.0.1:5000") == views
    assert tracker.run(again.run_id).status == "FINISHED"
    assert tracker.read_json(again.run_id, "records/provenance.json") == {"trained": "by this"}
    assert trials.run().run_id == again.run_id


def test_a_run_without_its_trial_is_trained_again(trials: Trials) -> None:
    first = trials.run()
    shutil.rmtree(trials.folder)
    again = trials.run()
    assert (again.skipped, trials.trained) == (False, 2)
    assert again.run_id != first.run_id


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_text("{bro")])
def test_small_files_that_are_lost_or_damaged_are_made_again(trials: Trials, damage: Callable[[Path], Any]) -> None:
    first = trials.run()
    damage(trials.folder / "provenance.json")
    again = trials.run()
    assert (again.skipped, again.provenance, again.run_id) == (True, first.provenance, first.run_id)
    damage(trials.folder / "run.json")
    damage(trials.folder / "provenance.json")
    assert trials.run().provenance == first.provenance
    assert trials.trained == 1


def test_two_jobs_with_one_trial_train_it_once(trials: Trials) -> None:
    done: list[trial.Trial] = []
    other = threading.Thread(target=lambda: done.append(trials.run()))

    def meanwhile() -> None:
        other.start()
        while StageEvent not in {type(event) for event in trials.received}:
            assert other.is_alive()

    trials.during = meanwhile
    first = trials.run()
    other.join(60)
    assert trials.trained == 1
    assert [dataclasses.replace(one, skipped=False) for one in done] == [first]
    assert done[0].skipped
    assert [event.text for event in trials.received if isinstance(event, StageEvent)] == [
        "another job has this trial: waiting for it (Ctrl-C stops waiting)"
    ]
