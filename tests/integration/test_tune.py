"""`jobs/tune.py` as a user runs it: a population trains, and what it came to is what training without a break comes to."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.track.tracked_run import TAG_ADAPTER, TAG_IDENTITY, TAG_KIND, TAG_SCIENCE, TAG_SYSTEM
from crossmesh.track.trackers import open_tracker
from tiny_job import TINY

pytestmark = [pytest.mark.integration, pytest.mark.full]

STEPS = 6
SETTINGS = ("optim.learning_rate", "optim.weight_decay")
POPULATION = ("tune=pbt", "tune.population=2", "tune.perturb_steps=3", "tune.quantile=0.5")


def run(checkout: Path, storage: Path, job: str, *arguments: str, code: int = 0) -> dict[str, Any]:
    command = [sys.executable, str(checkout / "jobs" / f"{job}.py"), *TINY, f"optim.steps={STEPS}", f"storage.root={storage}", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=280, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == code, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {"error": done.stderr}
    return said


def test_a_population_trains_to_the_end_and_a_member_without_change_is_the_undisturbed_run(checkout: Path, tmp_path: Path) -> None:
    said = run(checkout, tmp_path, "tune", *POPULATION)
    assert (said["done"], len(said["points"])) == (4, 4)
    tracker = open_tracker(TrackingSpec(), StorageSpec(str(tmp_path)))
    trained = {one.run_id: one for one in tracker.matching("") if one.tags[TAG_KIND] == "train"}
    last = [one for one in trained.values() if one.params["optim.stop_at"] == str(STEPS)]
    first = [trained[one.params["checkpoint.resume_from"]] for one in last]
    assert len(last) == 2
    assert len({one.run_id for one in first}) == 1, "both go on from the better one"
    better = {key: first[0].params[key] for key in SETTINGS}
    (kept,) = [one for one in last if {key: one.params[key] for key in SETTINGS} == better]
    for one in last:  # Its past is in its own run.
        assert [step for step, _ in tracker.history(one.run_id, "train/loss")] == list(range(1, STEPS + 1))
    settings = [f"{key}={value}" for key, value in better.items()]
    run(checkout, tmp_path / "apart", "finetune", *settings)
    apart = open_tracker(TrackingSpec(), StorageSpec(str(tmp_path / "apart")))
    (whole,) = [one for one in apart.matching("") if one.tags[TAG_KIND] == "train"]
    assert apart.history(whole.run_id, "train/loss") == tracker.history(kept.run_id, "train/loss")
    for tag in (TAG_ADAPTER, TAG_SCIENCE, TAG_SYSTEM, TAG_IDENTITY):
        assert whole.tags[tag] == kept.tags[tag], tag
    named = tracker.read_json(kept.run_id, "records/provenance.json")["settings"]
    assert named["resumed_from"] == first[0].tags[TAG_SCIENCE]
    (varied,) = [one for one in last if one.run_id != kept.run_id]
    assert tracker.read_json(varied.run_id, "records/science.json")["resumed_from"] == first[0].tags[TAG_SCIENCE]
    done = run(checkout, tmp_path, "finetune", *settings)  # The undisturbed run is this member, trained already.
    assert (done["already_done"], done["run_id"]) == (True, kept.run_id)

    again = run(checkout, tmp_path, "tune", *POPULATION)
    assert (again["skipped"], again["best"]) == (4, said["best"])
    refused = run(checkout, tmp_path, "finetune", f"checkpoint.resume_from={kept.run_id}", code=2)
    assert "nothing is left" in refused["error"]
