"""A job that is ended by a signal to its process group, as `timeout` and Slurm send it; the same command goes on, then finds it done."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tiny_job import TINY

pytestmark = [pytest.mark.integration, pytest.mark.full]

STEPS = 60
ENDS_S = 60.0
"""Ray's own patience with its processes is part of it; a quiet machine takes a third."""


def statuses(storage: Path) -> list[str]:
    with closing(sqlite3.connect(storage / "mlflow.db")) as store:
        return [status for (status,) in store.execute("SELECT status FROM runs")]


def test_a_job_whose_group_is_terminated_ends_as_interrupted_goes_on_and_is_then_found_without_ray(
    checkout: Path, own_storage: Path, clean_environment: dict[str, str]
) -> None:
    command = [sys.executable, str(checkout / "jobs" / "finetune.py"), *TINY, f"optim.steps={STEPS}", f"storage.root={own_storage}"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment, start_new_session=True
    )
    said = []
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line)
        if line.lstrip().startswith("steps "):
            break
    assert said[0].startswith("crossmesh: finetune is starting")
    sent = time.monotonic()
    os.killpg(process.pid, signal.SIGTERM)
    said += process.stderr.readlines()
    assert process.wait(timeout=120) == 130, "".join(said)
    seconds = time.monotonic() - sent
    assert seconds < ENDS_S
    assert "Traceback" not in "".join(said)
    assert statuses(own_storage) == ["KILLED"]

    again = subprocess.run(command, capture_output=True, text=True, env=clean_environment, check=True)
    result = json.loads(again.stdout.splitlines()[-1])
    assert not result["already_done"]
    assert statuses(own_storage) == ["FINISHED"]
    assert f" of {STEPS}" in again.stderr.partition("continuing after step ")[2], again.stderr

    found = subprocess.run(command, capture_output=True, text=True, env=clean_environment, check=True)
    assert json.loads(found.stdout.splitlines()[-1]) == {**result, "already_done": True}
    assert "Ray" not in found.stderr
