"""A Ray cluster of several emulated nodes on this machine: a head, TPU hosts and GPU nodes as the catalogue describes them.

Nodes carry the resources, labels and variables that Ray finds on real ones; computing is on CPU devices (`CROSSMESH_EMULATE`). The cluster
has its own folder, ports and token, listens on the loopback only, and takes every process of it along when it ends. It lives in a process
of its own, because Ray reads how it authenticates once, when it is imported; drivers are started with `EmulatedCluster.variables`.
"""

import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.devices import Gpu, Tpu
from crossmesh.ray_cleanup import end_processes

_STORE_BYTES = 100 << 20
_NEW_MOUNTS = 0x00020000
"""CLONE_NEWNS of unshare(2)."""
_PLATFORM = Path(__file__).resolve().parents[2] / "platform"


@dataclass(frozen=True)
class EmulatedNode:
    """Arguments of one node: what `ray start` finds on a real one."""

    resources: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    num_gpus: int = 0
    num_cpus: int = 2
    hidden: Mapping[str, int] = field(default_factory=dict)
    """Folders in whose place the node sees an empty disk of so many bytes, as a machine of its own would; needs root."""


def tpu_nodes(hardware: str, slice_name: str, *, named: bool = True) -> list[EmulatedNode]:
    """The hosts of one slice of the catalogue. Not `named`: hosts that do not know the name of their slice, on which no run can start."""
    device = find_slice(hardware).device
    assert isinstance(device, Tpu)
    nodes = []
    for worker in range(device.hosts):
        resources: dict[str, float] = {"TPU": device.chips_per_host, device.node_resource: 1, slice_name: 1}
        if worker == 0:
            resources[device.head_resource] = 1
        labels = {
            "ray.io/accelerator-type": device.accelerator,
            "ray.io/tpu-slice-name": slice_name,
            "ray.io/tpu-worker-id": str(worker),
            "ray.io/tpu-topology": device.topology,
            "ray.io/tpu-pod-type": device.accelerator_type,
        }
        variables = {"TPU_WORKER_ID": str(worker), "TPU_ACCELERATOR_TYPE": device.accelerator_type, "TPU_TOPOLOGY": device.topology}
        nodes.append(EmulatedNode(resources, labels, {**variables, "TPU_NAME": slice_name} if named else variables))
    return nodes


def gpu_node(hardware: str) -> EmulatedNode:
    """One node with the GPUs of the catalogue's entry."""
    device = find_slice(hardware).device
    assert isinstance(device, Gpu)
    labels = {"ray.io/accelerator-type": device.accelerator_type}
    return EmulatedNode({device.node_resource: 1}, labels, num_gpus=device.count)


@dataclass
class EmulatedCluster:
    """A running cluster."""

    address: str
    folder: Path
    variables: Mapping[str, str]
    """What a driver of this cluster needs in its environment."""
    dashboard: str
    """Address of the dashboard, http://...; empty without one."""
    _process: "subprocess.Popen[str]"

    def add(self, node: EmulatedNode) -> int:
        """Start a node, wait until the cluster knows it, and return the pid of its raylet."""
        return int(_ask(self._process, asdict(node))["raylet"])

    def state(self) -> dict[str, Any]:
        """What Ray's tables say: `nodes` by id with their `labels`, labels of the nodes of `actors` by class, and what is `free`."""
        return _ask(self._process, {"state": True})

    @property
    def environment(self) -> dict[str, str]:
        """The environment for a driver."""
        return {**{name: value for name, value in os.environ.items() if not name.startswith("RAY_")}, **self.variables}


def kill_node(raylet: int) -> None:
    """End a node as a power cut would: SIGKILL to its raylet, its agents and its workers at once."""
    for pid in [raylet, *descendants(raylet)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def emulated_cluster(*nodes: EmulatedNode, head_cpus: int = 2, dashboard: bool = False) -> Iterator[EmulatedCluster]:
    """Start a head and `nodes`; end them, and everything that ran on them, with the block."""
    folder = Path(tempfile.mkdtemp(prefix="cm-e-", dir="/tmp"))
    (folder / "tmp").mkdir()
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32), encoding="ascii")
    variables = {
        "PYTHONPATH": str(_PLATFORM),
        "RAY_TMPDIR": str(folder),
        "TMPDIR": str(folder / "tmp"),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_enable_metrics_collection": "0",
        "RAY_JOB_STOP_WAIT_TIME_S": "150",
        "CROSSMESH_EMULATE": "1",
    }
    environment = {**{name: value for name, value in os.environ.items() if not name.startswith("RAY_")}, **variables}
    command = [sys.executable, __file__]
    with (folder / "cluster.log").open("w") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    try:
        port = _free_port() if dashboard else 0
        address = _ask(process, {"head_cpus": head_cpus, "dashboard": port})["address"]
        where = f"http://127.0.0.1:{port}" if dashboard else ""
        made = EmulatedCluster(address, folder, {**variables, "RAY_ADDRESS": address}, where, process)
        for node in nodes:
            made.add(node)
        yield made
    finally:
        process.kill()
        process.wait()
        end_processes(folder, grace_s=0.0, ask_s=5.0)
        shutil.rmtree(folder, ignore_errors=True)


def _ask(process: "subprocess.Popen[str]", request: Mapping[str, Any]) -> dict[str, Any]:
    """Send one request to the process of the cluster and return its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith("{"):
            answer: dict[str, Any] = json.loads(line)
            return answer
    raise RuntimeError("the emulated cluster did not start; its log is cluster.log in its folder")


def _serve() -> None:
    """The process of a cluster: starts the head, then a node for each line that comes in."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(shutdown_at_exit=False)
    for line in sys.stdin:
        request = json.loads(line)
        if "state" in request:
            nodes = {node["NodeID"]: {"labels": node["Labels"]} for node in cluster.global_state.node_table() if node["Alive"]}
            actors: dict[str, list[Any]] = {}
            for actor in cluster.global_state.actor_table(None).values():
                if actor["State"] == "ALIVE":
                    actors.setdefault(actor["ActorClassName"], []).append(nodes.get(actor["Address"]["NodeID"], {}).get("labels"))
            _answer({"actors": actors, "nodes": nodes, "free": cluster.global_state.available_resources()})
            continue
        if "head_cpus" in request:
            node = cluster.add_node(
                num_cpus=request["head_cpus"],
                gcs_server_port=_free_port(),
                include_dashboard=bool(request["dashboard"]),
                dashboard_host="127.0.0.1",
                dashboard_port=request["dashboard"] or None,
                dashboard_agent_listen_port=_free_port(),
                object_store_memory=_STORE_BYTES,
                node_ip_address="127.0.0.1",
            )
        else:
            with _other_disks(request["hidden"]):
                node = cluster.add_node(
                    num_cpus=request["num_cpus"],
                    num_gpus=request["num_gpus"],
                    resources=request["resources"],
                    labels=request["labels"],
                    env_vars=request["variables"],
                    object_store_memory=_STORE_BYTES,
                    node_ip_address="127.0.0.1",
                )
        _answer({"address": cluster.address, "raylet": node.all_processes["raylet"][0].process.pid})


@contextmanager
def _other_disks(hidden: Mapping[str, int]) -> Iterator[None]:
    """Give processes that are started in the block a mount namespace of their own."""
    if not hidden:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY)
    try:
        if libc.unshare(_NEW_MOUNTS):
            raise OSError(ctypes.get_errno(), "no mount namespace")
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        for folder, size in hidden.items():
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
        yield
    finally:
        libc.setns(before, _NEW_MOUNTS)
        os.close(before)


def _answer(values: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def descendants(pid: int) -> list[int]:
    """Processes that `pid` started, and those that they started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        waiting += (new := children.get(waiting.pop(), []))
        found += new
    return found


if __name__ == "__main__":
    _serve()
