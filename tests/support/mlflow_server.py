"""An MLflow server of its own for a test, that can be killed and started again where it was."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class MlflowServer:
    """Keeps runs and artifacts in `folder`; listens on one port of 127.0.0.1, also after a restart."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self._port}"
        self._folder = folder
        # Not that of a local Ray, which ends all that was started in it; and without seven processes for jobs that nobody has.
        self._environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, without waiting."""
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port), "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{self._folder / 'server.db'}", "--artifacts-destination", str(self._folder / "kept")]
        with (self._folder / "server.log").open("a") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=self._environment)

    @property
    def started(self) -> bool:
        """Whether it was started and not ended since."""
        return self._process is not None

    def wait(self) -> None:
        """Wait until it answers."""
        assert self._process is not None
        deadline = time.monotonic() + 240
        while True:
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=5).close()
            except OSError:
                assert self._process.poll() is None, (self._folder / "server.log").read_text()
                assert time.monotonic() < deadline, (self._folder / "server.log").read_text()
                time.sleep(0.5)
            else:
                return

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it with all its processes."""
        if self._process is not None:
            os.killpg(self._process.pid, how)
            self._process.wait(60)
            self._process = None


@contextmanager
def mlflow_server(folder: Path) -> Iterator[MlflowServer]:
    """A server that answers, until the block ends."""
    server = MlflowServer(folder)
    server.start()
    try:
        server.wait()
        yield server
    finally:
        server.end(signal.SIGTERM)
