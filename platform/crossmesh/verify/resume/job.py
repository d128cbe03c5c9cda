"""A training job in a process of its own that can be killed, and what it leaves behind: its Ray, its checkpoints.

The other end of `driver.py`. Only processes of the job's own local Ray are ever ended here.
"""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec
from crossmesh.environments import package_root
from crossmesh.errors import CrossmeshError
from crossmesh.ray_cleanup import end_processes, processes_of
from crossmesh.train.events import Event, from_json
from crossmesh.verify.resume.driver import SPEC_FILE

_WORKER = b"RayTrainWorker"
_ASK_S = 5.0
_TAIL = 2000


class TrainingJob:
    """A job of `spec` in a storage of its own; started as often as it takes."""

    def __init__(self, spec: ExperimentSpec, folder: Path) -> None:
        """`folder` becomes the storage."""
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._session: Path | None = None
        folder.mkdir(parents=True)
        own = replace(spec, storage=StorageSpec(str(folder)))
        (folder / SPEC_FILE).write_bytes(pickle.dumps(own))

    def run(self, hear: Callable[[Event], None]) -> dict[str, Any] | None:
        """Start the job and return what it says at its end; None when it was killed.

        Raises `CrossmeshError` when it ended by itself without a result.
        """
        result = None
        log = self._folder / "driver.log"
        with self._started(log) as process:
            for line in process.stdout or ():
                message = json.loads(line)
                if message.get("session"):
                    self._session = Path(message["session"])
                if "event" in message:
                    hear(from_json(message["event"]))
                result = message.get("result", result)
            if result is None and process.wait() != -signal.SIGKILL:
                raise CrossmeshError(f"A training job failed: {log.read_text(encoding='utf-8')[-_TAIL:].strip()}")
        return result

    def kill_worker(self) -> None:
        """SIGKILL to the training workers of the running job."""
        for pid in processes_of(self._session) if self._session else ():
            with suppress(OSError):
                if _WORKER in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)

    def kill_driver(self) -> None:
        """SIGKILL to the running job itself."""
        if self._process is not None:
            self._process.kill()

    def checkpoints(self) -> list[Path]:
        """Folders of the checkpoints that are there, oldest first."""
        return sorted(self._folder.glob("trials/*/checkpoints/step-*"))

    @contextmanager
    def _started(self, log: Path) -> Iterator["subprocess.Popen[str]"]:
        """The running process; at the end it and its Ray are gone."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        command = [sys.executable, "-m", "crossmesh.verify.resume.driver", str(self._folder)]
        environment = {**inherited, "PYTHONPATH": str(package_root())}
        with (
            log.open("a", encoding="utf-8") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process,
        ):
            self._process = process
            try:
                yield process
            finally:
                process.kill()
                if self._session is not None:
                    end_processes(self._session, grace_s=0.0, ask_s=_ASK_S)
                    shutil.rmtree(self._session, ignore_errors=True)
                self._process = self._session = None


def flip_a_bit(checkpoint: Path) -> Path:
    """Flip one bit in the middle of the largest file of a checkpoint; returns the file."""
    file = max((file for file in checkpoint.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return file


def step_of(checkpoint: Path) -> int:
    """The step that a checkpoint's folder is named by."""
    return int(checkpoint.name.rpartition("-")[2])
