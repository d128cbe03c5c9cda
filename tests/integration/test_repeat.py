"""The command that a report gives where one run each decides nothing: run as it stands, it decides."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.track.tracked_run import TAG_KIND
from crossmesh.track.trackers import open_tracker

pytestmark = [pytest.mark.integration, pytest.mark.full]
SPEC = ("model=tiny_llama", "data.max_rows=40", "optim.steps=8", "batch.size=2", "name=repeated")


def job(checkout: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, *arguments, "output=json"],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_command_that_a_report_gives_adds_the_repeats_that_decide(checkout: Path, tmp_path: Path) -> None:
    root = f"storage.root={tmp_path / 'storage'}"
    ids = [job(checkout, "jobs/finetune.py", *SPEC, root, f"backend={backend}")["run_id"] for backend in ("torch", "jax")]
    where = (root, f"folder={tmp_path / 'reports'}")
    first = job(checkout, "jobs/compare.py", f"runs=[{','.join(ids)}]", *where)
    speed = next(one for one in first["findings"] if one["aspect"] == "speed")
    assert speed["answer"] == "Not decided: one run each"
    said = next(found[1] for one in speed["reasons"] if (found := re.match(r"To decide it: python (.*)", one)))
    second = job(checkout, *shlex.split(said), "repeat_steps=4", f"folder={tmp_path / 'reports'}")
    tracker = open_tracker(TrackingSpec(), StorageSpec(str(tmp_path / "storage")))
    for run_id in ids:
        repeats = tracker.children(run_id)
        assert [one.tags[TAG_KIND] for one in repeats] == ["repeat"] * 3
        assert all(one.status == "FINISHED" and "load/steal_percent" in one.metrics for one in repeats)
    shown = [variant["repeats"] for variant in second["variants"].values() if variant["run_id"] in ids]
    assert [len(one) for one in shown] == [3, 3]
    rounds = [{one["round"] for one in repeats} for repeats in shown]
    assert rounds[0] == rounds[1]
    speed = next(one for one in second["findings"] if one["aspect"] == "speed")
    loaded = any(one["load"] for repeats in shown for one in repeats)
    assert ("under load" in speed["answer"]) == loaded == speed["answer"].startswith("Not decided")
    assert {run.run_id for run in tracker.recent("train")} == set(ids)  # No repeat is a training.
