"""`ray up`, jobs on nodes that come and go, and `ray down` with cluster.yaml, on a Google Cloud in a box.

Ray's launcher and autoscaler are unchanged. Machines are namespaces of this machine: what they install is the checkout's environment, and
their accelerators are CPU devices (`CROSSMESH_EMULATE`).
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from google_cloud.box import Box, box, missing
from tiny_job import TINY

pytestmark = [
    pytest.mark.integration,
    pytest.mark.full,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(missing()), reason=f"a box {missing()}"),
]

VARIABLES = {
    "CROSSMESH_EMULATE": "1",
    "OMP_NUM_THREADS": "1",
    # Intervals that a user may set: nothing else is faster than on Google Cloud.
    "AUTOSCALER_NODE_SSH_INTERVAL_S": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "AUTOSCALER_NODE_START_WAIT_S": "10",
    "RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S": "90",
}
PATIENCE_S = 600
"""Two nodes come up and two jobs import JAX and torch at once: minutes on two cores that others use too."""
JOB = " ".join([*TINY, "optim.steps=4", "tracking.system_metrics=false"])
WAITING = 'python -c "import ray, time; ray.get(ray.util.placement_group([dict(GPU=1)]).ready()); time.sleep(9999)"'
"""A job that needs a GPU, and is never done. (Of `request_resources` a cluster has one for all, and jobs of Ray Train take theirs back.)"""
HEAD = "n2-standard-8"


@dataclass
class Cluster:
    """A cluster that `ray up` has made, as its user sees it from the laptop."""

    boxed: Box
    folder: Path
    ray: str
    """What commands of the laptop begin with."""

    def machines(self) -> dict[str, dict[str, Any]]:
        """All but the head."""
        return {name: one for name, one in self.boxed.ask(state=True)["machines"].items() if one["sort"] != HEAD}

    def submit(self, name: str, command: str) -> None:
        """Start a job without waiting for it."""
        self.boxed.run(f"{self.ray} job submit --no-wait --submission-id {name} --working-dir . -- {command}", self.folder / name)

    def stop(self, name: str) -> None:
        self.boxed.run(f"{self.ray} job stop {name}", self.folder / f"{name}.stop", timeout=200)
        assert self.status(name) == "STOPPED"

    def logs(self, name: str) -> str:
        """What a job has said so far."""
        return self.boxed.run(f"{self.ray} job logs {name}", self.folder / f"{name}.log")

    def status(self, name: str) -> str:
        said = self.boxed.run(f"{self.ray} job status {name}", self.folder / f"{name}.status")
        found = re.findall("PENDING|RUNNING|STOPPED|SUCCEEDED|FAILED", said.upper())
        return str(found[-1])

    def autoscaler(self) -> str:
        """The end of what Ray's autoscaler says on the head."""
        (head,) = [one for one in self.boxed.ask(state=True)["machines"].values() if one["sort"] == HEAD]
        return self.boxed.run("tail -c 20000 /tmp/ray/session_latest/logs/monitor.log", self.folder / "monitor.log", head["address"])

    def wait(self, what: str, met: Callable[[], bool], every_s: float = 2.0) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not met():
            assert time.monotonic() < deadline, f"{what}: {self.boxed.ask(state=True)}\n{self.autoscaler()}"
            time.sleep(every_s)


@pytest.fixture(scope="module")
def cluster(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A head, and a tunnel to it; at the end nothing is left, and every request was one that Google's documents know."""
    folder = tmp_path_factory.mktemp("cluster")
    ray = f"cd checkout && export PATH={checkout}/.venv/bin:$PATH RAY_AUTH_MODE=token RAY_ADDRESS=http://127.0.0.1:8265 && ray"
    with box(VARIABLES) as boxed:
        # Half a minute without work, not ten.
        idle = "sed -i 's/^idle_timeout_minutes: 10$/idle_timeout_minutes: 0.5/' checkout/cluster.yaml"
        boxed.run(idle, folder / "idle.log")
        boxed.run(f"{ray} up -y cluster.yaml", folder / "up.log", timeout=PATIENCE_S)
        made = Cluster(boxed, folder, ray)
        tunnel = boxed.start(f"{ray} dashboard cluster.yaml", folder / "tunnel.log")
        made.wait("no tunnel", lambda: _answers(boxed, folder))
        yield made
        tunnel.kill()
        tunnel.wait()
        boxed.run(f"{ray} down -y cluster.yaml", folder / "down.log", timeout=PATIENCE_S)
        state = boxed.ask(state=True)
        assert state["machines"] == {}
        assert state["violations"] == []


def _answers(boxed: Box, folder: Path) -> bool:
    """Whether something listens at the laptop's end of the tunnel."""
    return "0100007F:2049" in boxed.run("cat /proc/net/tcp", folder / "listening.log")


def test_a_machine_sees_nothing_of_this_one(cluster: Cluster, tmp_path: Path) -> None:
    """Commands of cluster.yaml end Ray's processes by name."""
    said = cluster.boxed.run("ls /proc | grep -c '^[0-9]'; hostname; id -un; sudo id -u", tmp_path / "log")
    processes, name, user, root = said.split()
    assert int(processes) < 30
    assert (name, user, root) == ("laptop", "ubuntu", "0")


def test_ray_up_makes_a_head_whose_dashboard_listens_on_its_loopback(cluster: Cluster, tmp_path: Path) -> None:
    state = cluster.boxed.ask(state=True)
    (head,) = [one for one in state["machines"].values() if one["sort"] == HEAD]
    assert (head["state"], head["labels"]["ray-node-status"]) == ("RUNNING", "up-to-date")
    listening = cluster.boxed.run("cat /proc/net/tcp /proc/net/tcp6", tmp_path / "log", head["address"])
    assert "0100007F:2049" in listening  # Port 8265 in hexadecimal.
    assert "00000000:2049" not in listening


def test_jobs_bring_up_a_tpu_and_a_gpu_node_and_idle_nodes_go(cluster: Cluster) -> None:
    kinds = {"tpu": "tpu_v5p_8", "gpu": "gpu_2xh100"}
    for name, hardware in kinds.items():
        cluster.submit(name, f"python jobs/finetune.py {JOB} hardware={hardware}")
    cluster.wait("nodes", lambda: {one["sort"] for one in cluster.machines().values()} == {"v5p-8", "a3-highgpu-2g"})
    for name in kinds:
        cluster.wait(name, lambda name=name: cluster.status(name) not in ("PENDING", "RUNNING"), 5.0)
    losses = {}
    for name in kinds:
        told = cluster.logs(name)
        assert cluster.status(name) == "SUCCEEDED", told
        (result,) = [json.loads(line) for line in told.splitlines() if line.startswith('{"adapter"')]
        losses[name] = result["final_loss"]
    assert abs(losses["tpu"] - losses["gpu"]) / losses["gpu"] < 1e-3
    cluster.wait("idle nodes", lambda: cluster.machines() == {})
    assert sorted(cluster.boxed.ask(state=True)["history"]) == ["a3-highgpu-2g", HEAD, "v5p-8"]  # No node was made twice.


def test_a_job_says_why_its_nodes_do_not_come(cluster: Cluster) -> None:
    """A stock-out and a refused quota, for as long as the jobs wait; both can be stopped, and nothing is left."""
    wanted = {
        "stockout": ("gpu_2xh100", "a3-highgpu-2g", r"gpu_2xh100 could not be started \(.*\): ZONE_RESOURCE_POOL_EXHAUSTED: The zone"),
        "quota": ("tpu_v5p_8", "v5p-8", r"tpu_v5p_8 could not be started \(.*\): Quota limit 'TPUPerProjectPerZone"),
    }
    for fault, (hardware, sort, _) in wanted.items():
        cluster.boxed.ask(fault=fault, sort=sort, count=1000)
        cluster.submit(fault, f"python jobs/finetune.py {JOB.replace('steps=4', 'steps=5')} hardware={hardware}")
    for fault, (_, _, said) in wanted.items():
        cluster.wait(fault, lambda fault=fault, said=said: re.search(said, cluster.logs(fault)) is not None, 5.0)
        cluster.stop(fault)
        cluster.boxed.ask(fault=fault, sort=wanted[fault][1], count=0)
    cluster.wait("refused nodes", lambda: cluster.machines() == {})


def test_nodes_that_never_come_up_are_deleted_and_replaced(cluster: Cluster) -> None:
    """One that is never ready, then one on which nobody answers: neither is left, and none is made that nobody asks for."""
    before = len(cluster.boxed.ask(state=True)["history"])
    for fault in ("half_created", "never_up"):
        cluster.boxed.ask(fault=fault, sort="a3-highgpu-2g")
    cluster.submit("patient", WAITING)
    seen: dict[str, None] = {}

    def third() -> bool:
        seen.update(dict.fromkeys(cluster.machines()))
        return len(seen) == 3 and [*cluster.machines()] == [*seen][2:]

    cluster.wait("the third node, alone", third)
    cluster.stop("patient")
    cluster.wait("idle nodes", lambda: cluster.machines() == {})
    assert cluster.boxed.ask(state=True)["history"][before:] == ["a3-highgpu-2g"] * 3


def test_a_preempted_node_is_replaced_while_it_is_asked_for(cluster: Cluster) -> None:
    before = len(cluster.boxed.ask(state=True)["history"])
    cluster.submit("preempted", WAITING)
    cluster.wait("a node", lambda: [one["labels"].get("ray-node-status") for one in cluster.machines().values()] == ["up-to-date"])
    (name,) = cluster.machines()
    cluster.boxed.ask(preempt=name)
    cluster.wait("another node", lambda: [*cluster.machines()] not in ([], [name]))
    cluster.stop("preempted")
    cluster.wait("idle nodes", lambda: cluster.machines() == {})
    assert cluster.boxed.ask(state=True)["history"][before:] == ["a3-highgpu-2g"] * 2
