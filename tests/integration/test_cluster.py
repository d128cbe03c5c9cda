"""A local Ray of our own: on the loopback only, authenticated, and gone without a trace however the job ends."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

JOB = """
import os, re, subprocess, sys, time
from pathlib import Path
import ray
from crossmesh.cluster.session import ray_session
from crossmesh.ray_cleanup import processes_of
from crossmesh.config.experiment import StorageSpec

with ray_session(StorageSpec(sys.argv[1])) as session:
    with ray_session(StorageSpec(sys.argv[1])) as inner:
        assert inner.address == session.address and not inner.local
    assert ray.is_initialized(), "the inner session must not end the outer one"
    pids = [*processes_of(session.folder), os.getpid()]
    listening = subprocess.run(["ss", "-ltnp"], capture_output=True, text=True, check=True).stdout.splitlines()
    ours = [line for line in listening if any(f"pid={pid}," in line for pid in pids)]
    print("folder", session.folder, flush=True)
    print("listening", len(ours), flush=True)
    print("reachable", [line for line in ours if "127.0.0.1" not in line.split()[3]], flush=True)
    print("ready", flush=True)
    {body}
"""


# A second driver on the same cluster: it works in a worker of it, and leaves it running.
GUEST = """
import os, sys
from crossmesh.cluster.calls import call_worker
from crossmesh.cluster.session import ray_session
from crossmesh.environments import package_root
from crossmesh.hardware.devices import Cpu
from crossmesh.config.experiment import StorageSpec
with ray_session(StorageSpec(sys.argv[1])) as session:
    niceness = call_worker("head", Cpu(), lambda: os.nice(0))
    print(session.local, call_worker("head", Cpu(), package_root) == package_root(), niceness == os.nice(0))
"""


def start(tmp_path: Path, body: str) -> subprocess.Popen[str]:
    script = tmp_path / "job.py"
    script.write_text(JOB.replace("{body}", body))
    environment = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_AUTH_MODE")}
    return subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "storage")], stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment
    )


def read_until_ready(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout is not None
    said = {}
    for line in process.stdout:
        key, _, value = line.strip().partition(" ")
        said[key] = value
        if key == "ready":
            break
    return said


def left_over(folder: str) -> list[int]:
    from crossmesh.ray_cleanup import processes_of

    return processes_of(Path(folder))


def test_loopback_only_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "guest.py").write_text(GUEST)
    guest = [sys.executable, str(tmp_path / "guest.py"), str(tmp_path / "storage")]
    body = f"""
    told = subprocess.run({guest}, env={{**os.environ, "RAY_ADDRESS": session.address}}, capture_output=True, text=True, timeout=120)
    print("guest", told.stdout.strip() or told.stderr, flush=True)
    print("alive", ray.is_initialized() and len(ray.nodes()), flush=True)
"""
    process = start(tmp_path, body)
    said = read_until_ready(process)
    assert process.stdout is not None
    assert process.stdout.read().strip() == "guest False True True\nalive 1"
    assert process.wait(timeout=120) == 0
    assert int(said["listening"]) > 3
    assert said["reachable"] == "[]"
    assert left_over(said["folder"]) == []
    assert not Path(said["folder"]).exists()
    token = Path.home() / ".ray" / "auth_token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_to_the_whole_group_leave_nothing(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, "time.sleep(120)")
    said = read_until_ready(process)
    os.killpg(process.pid, number)  # As a terminal does: to every process of the group.
    assert process.wait(timeout=60) != 0
    assert left_over(said["folder"]) == []
    assert not Path(said["folder"]).exists()


def test_logs_are_kept_when_a_job_dies_of_a_bug(tmp_path: Path) -> None:
    process = start(tmp_path, "raise RuntimeError('bug')")
    said = read_until_ready(process)
    assert process.wait(timeout=120) == 1
    assert not Path(said["folder"]).exists()
    assert list((tmp_path / "storage" / "logs").glob("ray-*/raylet.out"))
