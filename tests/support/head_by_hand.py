"""A Ray cluster started by `ray start`, as on machines: a head that keeps its GCS in RocksDB, and GPU nodes, emulated on this machine."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from crossmesh.cluster import head_keeper
from crossmesh.ports import free_port
from crossmesh.ray_cleanup import end_processes

_RAY = Path(sys.executable).with_name("ray")
_PLATFORM = Path(head_keeper.__file__).resolve().parents[2]


@dataclass
class ByHand:
    """A running cluster."""

    folder: Path
    port: int
    dashboard: int
    environment: dict[str, str]
    """Of a driver, and of everything that is started here."""

    @property
    def gcs(self) -> head_keeper.Process:
        found = head_keeper.gcs_of(self.port)
        assert found
        return found

    def start_head(self) -> None:
        stored = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(self.folder / "gcs")}
        ports = (f"--port={self.port}", f"--dashboard-port={self.dashboard}", f"--ray-client-server-port={free_port('127.0.0.1')}")
        self._start("head", *ports, "--head", "--dashboard-host=127.0.0.1", f"--temp-dir={self.folder / 'r'}", "--num-cpus=4", more=stored)

    def add_gpu(self) -> None:
        resources = ("--num-gpus=1", '--resources={"accelerator_type:H100": 1}', "--labels=ray.io/accelerator-type=H100")
        self._start("node", f"--address=127.0.0.1:{self.port}", *resources, "--num-cpus=2")

    def keeper(self) -> "subprocess.Popen[bytes]":
        """The keeper of the head's GCS."""
        with (self.folder / "keeper.log").open("ab") as log:
            return subprocess.Popen([sys.executable, head_keeper.__file__, str(self.port)], stderr=log, env=self.environment)

    def kill_gcs(self) -> int:
        pid = self.gcs.pid
        os.kill(pid, signal.SIGKILL)
        return pid

    def end(self) -> None:
        """End every process of the cluster; what the GCS knew stays on disk."""
        end_processes(self.folder, grace_s=0.0, ask_s=5.0)

    def _start(self, kind: str, *arguments: str, more: dict[str, str] | None = None) -> None:
        agent = f"--dashboard-agent-listen-port={free_port('127.0.0.1')}"
        command = [sys.executable, str(_RAY), "start", *arguments, agent, "--node-ip-address=127.0.0.1", "--object-store-memory=100000000"]
        done = subprocess.run(command, env={**self.environment, **(more or {})}, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, f"{kind}: {done.stdout} {done.stderr}"


@contextmanager
def cluster_by_hand(gpus: int) -> Iterator[ByHand]:
    """Start a head and `gpus` nodes with a GPU each; end them with the block."""
    folder = Path(tempfile.mkdtemp(prefix="cm-h-", dir="/tmp"))
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32), encoding="ascii")
    port = free_port("127.0.0.1")
    variables = {
        "PYTHONPATH": str(_PLATFORM),
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",  # Several nodes on one machine.
        "RAY_enable_metrics_collection": "0",
        "RAY_JOB_STOP_WAIT_TIME_S": "150",
        "RAY_worker_niceness": "0",
        "CROSSMESH_EMULATE": "1",
        "OMP_NUM_THREADS": "1",
    }
    environment = {**{name: value for name, value in os.environ.items() if not name.startswith("RAY_")}, **variables}
    cluster = ByHand(folder, port, free_port("127.0.0.1"), {**environment, "RAY_ADDRESS": ""})
    try:
        cluster.start_head()
        for _ in range(gpus):
            cluster.add_gpu()
        cluster.environment["RAY_ADDRESS"] = f"127.0.0.1:{port}"
        yield cluster
    finally:
        cluster.end()
        shutil.rmtree(folder, ignore_errors=True)
