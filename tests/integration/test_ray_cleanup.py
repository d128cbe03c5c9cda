"""What a dead driver leaves is found by its environment and ended, also by a process that outlives the driver."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from crossmesh import ray_cleanup

pytestmark = pytest.mark.integration


def test_processes_of_a_folder_are_found_by_their_environment_and_ended(tmp_path: Path) -> None:
    stubborn = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-c", stubborn], env={**os.environ, "RAY_TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    assert ray_cleanup.processes_of(tmp_path) == [process.pid]
    assert ray_cleanup.processes_of(tmp_path / "other") == []
    ray_cleanup.end_processes(tmp_path, grace_s=0.0, ask_s=0.5)
    assert process.wait(timeout=5) == -signal.SIGKILL


def test_what_a_killed_process_guarded_is_cleared_away(tmp_path: Path) -> None:
    folder = tmp_path / "session"
    folder.mkdir()
    driver = f"""
import os, subprocess, sys, time
from pathlib import Path
from crossmesh.ray_cleanup import guarded
with guarded(Path({str(folder)!r})):
    child = [sys.executable, "-c", "import time; time.sleep(60)"]
    subprocess.Popen(child, env={{**os.environ, "RAY_TMPDIR": {str(folder)!r}}}, stdout=subprocess.DEVNULL)
    print("up", flush=True)
    time.sleep(60)
"""
    path = str(Path(ray_cleanup.__file__).parents[1])
    process = subprocess.Popen([sys.executable, "-c", driver], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    assert len(ray_cleanup.processes_of(folder)) == 1
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not folder.exists()
    assert ray_cleanup.processes_of(folder) == []
