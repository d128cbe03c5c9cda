"""Rows as people have them, through the job: what is dropped and what is not used is said on the screen, in JSON and in MLflow."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.track.trackers import open_tracker
from tiny_job import TINY

pytestmark = [
    pytest.mark.integration,
    pytest.mark.full,
    pytest.mark.skipif("CROSSMESH_TEST_DATA" not in os.environ, reason="needs CROSSMESH_TEST_DATA, a folder with wild in it"),
]


@pytest.fixture
def finetune(checkout: Path, own_storage: Path, clean_environment: dict[str, str]) -> Any:
    def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        source = Path(os.environ["CROSSMESH_TEST_DATA"]) / "wild" / "rows" / name
        command = [sys.executable, str(checkout / "jobs" / "finetune.py"), *TINY, "optim.steps=2", "batch.size=2", f"data.source={source}"]
        command.append(f"storage.root={own_storage}")
        return subprocess.run([*command, *arguments], capture_output=True, text=True, env=clean_environment, check=False)

    return run


def test_too_many_dropped_rows_stop_the_job_and_allowed_ones_are_told_everywhere(finetune: Any, own_storage: Path) -> None:
    refused = finetune("long_and_empty.jsonl", "data.max_length=64")
    assert refused.returncode == 2
    message = refused.stderr.splitlines()[-1]
    assert message.startswith("crossmesh: 14 of 16 rows would be dropped, more than data.max_dropped=0.01 allows: ")
    assert "long_and_empty.jsonl, line " in message
    assert "data.max_dropped=14" in message
    assert "Traceback" not in refused.stderr

    trained = finetune("long_and_empty.jsonl", "data.max_length=64", "data.max_dropped=14")
    assert trained.returncode == 0, trained.stderr
    values = json.loads(trained.stdout.splitlines()[-1])
    assert sum(values["dropped_rows"].values()) == 14
    assert "14 of 16 rows dropped: " in trained.stderr
    tracker = open_tracker(TrackingSpec(), StorageSpec(str(own_storage)))
    assert tracker.run(values["run_id"]).metrics["data/dropped_rows"] == 14
    record = tracker.read_json(values["run_id"], "records/rows.json")
    assert {one["reason"]: one["count"] for one in record["dropped"]} == values["dropped_rows"]
    assert all("long_and_empty.jsonl, line " in place for one in record["dropped"] for place in one["places"])


def test_keys_and_columns_that_nothing_uses_are_named_and_blank_system_turns_drop_nothing(finetune: Any, tmp_path: Path) -> None:
    blank = finetune("empty_system.jsonl")
    assert blank.returncode == 0, blank.stderr
    assert "dropped_rows" not in json.loads(blank.stdout.splitlines()[-1])

    fences = finetune("fences.jsonl", "data.answer_fence=true", "data.max_dropped=1")
    assert "these columns of the rows are not read: 'form' (14 rows)" in fences.stderr, fences.stderr

    tools = finetune("tool_calls_text.jsonl", "batch.size=1")
    assert tools.returncode == 2
    assert "leaves out" in tools.stderr
