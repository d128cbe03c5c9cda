"""A hook of another package follows a training that a user starts, and its fault is one message after which the training goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hook_package import write_package
from tiny_job import TINY

pytestmark = [pytest.mark.integration, pytest.mark.full]


def test_a_hook_follows_a_training(tmp_path: Path, checkout: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    package = {"PYTHONPATH": str(write_package(tmp_path / "package"))}
    environment = {**os.environ, **package, "CROSSMESH_STORAGE": str(tmp_path / "storage"), "HOOK_LINES": str(tmp_path)}
    command = [sys.executable, str(checkout / "jobs" / "finetune.py"), *TINY, "backend=torch", "optim.steps=3", "hooks=[lines]"]
    failed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert failed.returncode == 1
    assert "The hook 'lines' failed in on_start: IsADirectoryError" in failed.stderr
    assert "Traceback" not in failed.stderr
    done = subprocess.run(command, env={**environment, "HOOK_LINES": str(lines)}, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    told = [json.loads(line) for line in lines.read_text().splitlines()]
    assert (told[0]["run"], told[-1]) == (result["run_id"], {"ended": result["final_loss"]})
    assert [one["step"] for one in told if "step" in one] == [1, 2, 3]
    assert [one["checkpoint"] for one in told if "checkpoint" in one] == [3]
