"""The keeper of a head's GCS, on stand-ins: programs of those names that sleep."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crossmesh.cluster import head_keeper
from crossmesh.ports import free_port

pytestmark = pytest.mark.integration


class Head:
    """A GCS and a raylet that do nothing, and their keeper."""

    def __init__(self, folder: Path, storage: str) -> None:
        self.port = free_port("127.0.0.1")
        self.environment = {"RAY_gcs_storage": storage, "MARK": "kept", "PATH": os.environ["PATH"]}
        for name in ("gcs_server", "raylet"):
            (folder / name).symlink_to(Path(sys.executable).resolve())
        self.processes = [self._start(folder / "gcs_server", f"--gcs_server_port={self.port}"), self._start(folder / "raylet")]
        command = [sys.executable, head_keeper.__file__, str(self.port)]
        self.keeper = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def _start(self, program: Path, *arguments: str) -> "subprocess.Popen[bytes]":
        # A Python that sleeps under the name of the program, with the program's arguments.
        code = "import time; time.sleep(100)"
        arguments = arguments or (f"--gcs-address=127.0.0.1:{self.port}",)
        return subprocess.Popen([str(program), "-c", code, *arguments], env=self.environment)

    def gcs(self, other_than: int) -> head_keeper.Process:
        deadline = time.monotonic() + 20
        while (found := head_keeper.gcs_of(self.port)) is None or found.pid == other_than:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        return found


@pytest.fixture
def head(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Head]:
    made = Head(tmp_path, request.param)
    yield made
    for process in (*made.processes, made.keeper):
        process.kill()
        process.wait()
    if found := head_keeper.gcs_of(made.port):
        os.kill(found.pid, signal.SIGKILL)


@pytest.mark.parametrize("head", ["rocksdb"], indirect=True)
def test_a_dead_gcs_is_started_again_as_it_was_until_the_raylet_is_gone(head: Head) -> None:
    first, raylet = head.processes
    time.sleep(2)
    first.kill()
    first.wait()
    second = head.gcs(first.pid)
    assert second.variables["MARK"] == "kept"
    assert second.arguments[-1] == f"--gcs_server_port={head.port}"
    os.kill(second.pid, signal.SIGKILL)
    assert head.gcs(second.pid).arguments == second.arguments
    raylet.kill()
    raylet.wait()
    assert head.keeper.wait(timeout=20) == 0


@pytest.mark.parametrize("head", ["memory"], indirect=True)
def test_a_gcs_that_keeps_nothing_is_not_kept(head: Head) -> None:
    assert head.keeper.wait(timeout=20) == 1
    assert head.keeper.stderr is not None
    assert "Set RAY_gcs_storage=rocksdb." in head.keeper.stderr.read()
