"""With `tracking.trackers=[none]` whatever reads the run of an earlier job refuses it, by the key that named it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from crossmesh.adapters.sources import find_adapter
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.config.training import CheckpointSpec
from crossmesh.doctor.services import check_tracking
from crossmesh.errors import InputError
from crossmesh.pipeline.evaluation_job import _stored
from crossmesh.report.gate.selection import experiment_runs, find_run, named_runs, sweep_runs
from crossmesh.sweep.runs import tracked_state
from crossmesh.track.tracker import Tracker
from crossmesh.track.trackers import open_tracker
from crossmesh.trial.resume_checkpoint import find_resume_checkpoint

RUN = "1a2b3c4d" * 4
SPEC = ExperimentSpec(tracking=TrackingSpec(trackers=("none",)), checkpoint=CheckpointSpec(resume_from=RUN))


def _adapter(tracker: Tracker) -> object:
    return find_adapter(RUN, StorageSpec("/nowhere"), lambda: tracker, "lora.adapter")


@pytest.mark.parametrize(
    ("key", "read"),
    [
        (f"runs={RUN}", lambda tracker: named_runs(tracker, [RUN])),
        (f"baseline={RUN}", lambda tracker: find_run(tracker, "baseline", RUN)),
        (f"sweep={RUN}", lambda tracker: sweep_runs(tracker, RUN)),
        ("experiment=demo", lambda tracker: experiment_runs(tracker, "demo")),
        (f"checkpoint.resume_from={RUN}", partial(find_resume_checkpoint, SPEC)),
        (f"lora.adapter={RUN}", _adapter),
        (f"against={RUN}", lambda tracker: _stored(tracker, RUN)),
        (f"sweep={RUN}", lambda tracker: tracked_state(tracker, RUN)),
    ],
)
def test_a_run_of_an_earlier_job(tmp_path: Path, key: str, read: Callable[[Tracker], object]) -> None:
    tracker = open_tracker(SPEC.tracking, StorageSpec(str(tmp_path)))
    with pytest.raises(InputError) as error:
        read(tracker)
    assert str(error.value).startswith(f"{key}: tracking.trackers=['none'] keeps no run after its job, so there is none to read.")


def test_the_doctor_asks_no_mlflow_that_is_not_used(tmp_path: Path) -> None:
    (finding,) = check_tracking(replace(SPEC, storage=StorageSpec(str(tmp_path))))
    assert finding.found == "tracking.trackers=['none'] does not use it"
