"""`jobs/doctor.py` on an emulated cluster of a TPU slice, GPUs and a node with troubles of its own: one report, a table for each."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from emulated_cluster import EmulatedCluster, EmulatedNode, emulated_cluster, gpu_node, tpu_nodes

pytestmark = [pytest.mark.integration, pytest.mark.full, pytest.mark.timeout(1800)]

SKEW_S = 100
OTHER_CLOCK = """
import os, time
if shift := os.environ.get("CROSSMESH_TEST_SHIFT"):
    real = time.time
    time.time = lambda: real() + float(shift)
"""


@dataclass(frozen=True)
class Doctor:
    """A cluster, and the job that looks at it."""

    cluster: EmulatedCluster
    checkout: Path
    storage: Path
    modules: Path

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """The job, as a user would start it."""
        path = os.pathsep.join([self.cluster.environment["PYTHONPATH"], str(self.modules)])
        environment = {**self.cluster.environment, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "MY_API_KEY": "a-secret-of-the-driver"}
        command = [sys.executable, str(self.checkout / "jobs" / "doctor.py"), f"storage.root={self.storage}", "output=json", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    def run(self, *arguments: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, result and what was written to stderr."""
        job = self.start(*arguments)
        out, said = job.communicate(timeout=800)
        assert out, said
        assert "Traceback" not in said
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return job.returncode, found, said


@pytest.fixture(scope="module")
def doctor(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doctor]:
    storage, modules = tmp_path_factory.mktemp("storage"), tmp_path_factory.mktemp("modules")
    (modules / "sitecustomize.py").write_text(OTHER_CLOCK)
    other = EmulatedNode({"other": 1}, variables={"CROSSMESH_TEST_SHIFT": str(SKEW_S)}, num_cpus=4)
    apart = {str(storage): 1 << 20, "/dev/shm": 64 << 20} if os.geteuid() == 0 else {}
    other = EmulatedNode(other.resources, {}, other.variables, 0, 4, apart)
    gpus = gpu_node("gpu_2xh100")
    with emulated_cluster(*tpu_nodes("tpu_v5p_16", "slice-a"), *tpu_nodes("tpu_v5p_16", "slice-b"), gpus, gpus, other) as cluster:
        yield Doctor(cluster, checkout, storage, modules)


@pytest.fixture(scope="module")
def report(doctor: Doctor) -> tuple[int, dict[str, Any], str]:
    return doctor.run("hardware=gpu_2xh100", "node_timeout_s=480")


def of(node: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {one["name"]: one for one in node["findings"]}


def only(report: tuple[int, dict[str, Any], str], part: str) -> dict[str, Any]:
    (found,) = [node for node in report[1]["nodes"] if part in node["title"]]
    return found


def test_one_node_of_each_kind_and_every_host_of_one_slice(report: tuple[int, dict[str, Any], str]) -> None:
    code, found, said = report
    titles = [node["title"].partition("(")[2] for node in found["nodes"]]
    assert sorted(titles) == [
        "2 x H100; 1 more of its kind)",
        "4 CPUs)",
        "TPU v5p-16, host 0 of slice slice-a; 2 more of its kind)",
        "TPU v5p-16, host 1 of slice slice-a)",
    ]
    assert len({node["id"] for node in found["nodes"]}) == 4
    assert of(found)["nodes"]["found"].startswith("8 alive, 4 looked at")
    assert "hardware=gpu_2xh100" not in of(found)  # It is up.
    assert "looking at 4 nodes of the cluster" in said
    assert "nodes 4/4" in said
    assert code == 1
    assert list(found) == ["findings", "nodes", "faults", "notes"]


def test_what_is_as_it_should_be_on_a_node_is_no_fault(report: tuple[int, dict[str, Any], str]) -> None:
    for part in ("H100", "host 0", "host 1"):
        node = of(only(report, part))
        assert node["lock"]["status"] == "ok"
        assert "packages as in requirements/cpu.txt" in node["lock"]["found"]  # The lock of what stands in for the hardware.
        assert node["storage, shared"]["status"] == "ok"
        assert "locks hold between them" in node["storage, shared"]["found"]
        assert node["clock, skew"]["status"] == "ok"
        assert "to within" in node["clock, skew"]["found"]
        assert node["accelerators"]["mend"] == "unset CROSSMESH_EMULATE"
        assert {"interpreter", "libraries", "memory", "/dev/shm", "storage", "listening ports", "secret files", "MLflow"} <= set(node)
        assert {"sandbox", "hub", "clock", "disk, storage.root"} <= set(node)
        assert [one for one in node.values() if one["status"] == "fault" and one["name"] != "listening ports"] == []


def test_a_chip_is_measured_by_the_framework_of_its_hardware(report: tuple[int, dict[str, Any], str]) -> None:
    for part, framework in (("H100", "torch"), ("host 0", "jax"), ("host 1", "jax")):
        node = of(only(report, part))
        for name, unit in (("bf16 matmul", "TFLOP/s"), ("memory bandwidth", "GB/s")):
            assert node[name]["status"] == "note"
            assert unit in node[name]["found"]
            assert f", {framework} " in node[name]["found"]
            assert "on a CPU" in node[name]["found"]
    assert "bf16 matmul" not in of(only(report, "4 CPUs"))


def test_a_clock_that_goes_wrong_is_measured(report: tuple[int, dict[str, Any], str]) -> None:
    found = of(only(report, "4 CPUs"))["clock, skew"]
    assert (found["status"], found["mend"].partition("    #")[0]) == ("fault", "sudo timedatectl set-ntp true")
    skew = float(found["found"].partition(" ms ahead of this machine's")[0])
    bound = float(found["found"].partition("to within ")[2].partition(" ms")[0])
    assert abs(skew - SKEW_S * 1e3) <= bound + 0.2


@pytest.mark.skipif(os.geteuid() != 0, reason="a node with disks of its own needs root")
def test_a_node_with_another_storage_a_full_disk_and_little_shared_memory(report: tuple[int, dict[str, Any], str], doctor: Doctor) -> None:
    node = of(only(report, "4 CPUs"))
    shared = node["storage, shared"]
    assert shared["status"] == "fault"
    assert f"sudo mount -t nfs SERVER:/SHARE {doctor.storage}" in shared["mend"]
    assert "tmpfs" in shared["found"]
    assert (node["disk, storage.root"]["status"], node["/dev/shm"]["status"]) == ("fault", "fault")
    assert "export CROSSMESH_STORAGE=" in node["disk, storage.root"]["mend"]
    assert "sudo mount -o remount,size=2g /dev/shm" in node["/dev/shm"]["mend"]


def test_nothing_is_left_and_no_secret_is_shown(report: tuple[int, dict[str, Any], str], doctor: Doctor) -> None:
    token = (doctor.cluster.folder / "token").read_text()
    assert token not in json.dumps(report[1])
    assert "a-secret-of-the-driver" not in json.dumps(report[1])
    assert list(doctor.storage.glob(".doctor-*")) == []
    free = doctor.cluster.state()["free"]
    assert (free["TPU"], free["GPU"], free["TPU-v5p-16-head"]) == (16.0, 4.0, 2.0)


def test_hardware_that_is_not_up_is_not_started(doctor: Doctor) -> None:
    _, found, _ = doctor.run("hardware=tpu_v6e_8", "node_timeout_s=480")
    missing = of(found)["hardware=tpu_v6e_8"]
    assert missing["status"] == "note"
    assert "Nothing was started for it" in missing["found"]
    assert missing["mend"].startswith("start_nodes=true")


def test_hardware_that_is_asked_for_is_waited_for_and_looked_at(doctor: Doctor) -> None:
    """The node comes as an autoscaler brings it: after the job has asked for it."""
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(doctor.run, "hardware=tpu_v6e_8", "start_nodes=true", "node_timeout_s=480")
        time.sleep(10)
        assert not job.done()
        for node in tpu_nodes("tpu_v6e_8", "slice-c"):
            doctor.cluster.add(node)
        _, found, said = job.result()
    assert (of(found)["hardware=tpu_v6e_8"]["status"], of(found)["hardware=tpu_v6e_8"]["found"]) == ("ok", "started")
    assert "asking the cluster for hardware=tpu_v6e_8" in said
    assert [node["title"] for node in found["nodes"] if "TPU v6e-8, host 0 of slice slice-c" in node["title"]]


@contextmanager
def standing_still(doctor: Doctor) -> Iterator[None]:
    """A node that answers nothing. Tests of it are the last: Ray takes it for dead after a while."""
    raylet = doctor.cluster.add(EmulatedNode({"stuck": 1}, num_cpus=1))
    os.kill(raylet, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(raylet, signal.SIGCONT)


def test_a_node_that_does_not_answer_is_a_finding(doctor: Doctor) -> None:
    with standing_still(doctor):
        code, found, _ = doctor.run("node_timeout_s=15")
    assert code == 1
    (stuck,) = [node for node in found["nodes"] if "1 CPUs" in node["title"]]
    (one,) = stuck["findings"]
    assert (one["name"], one["status"]) == ("node", "fault")
    assert "no answer from head within 15 s" in one["found"]
    assert one["mend"].startswith(f"ray logs cluster --node-id {stuck['id']}")


def test_an_interrupt_ends_the_wait_for_a_node(doctor: Doctor) -> None:
    with standing_still(doctor):
        job = doctor.start("node_timeout_s=300")
        for line in job.stderr:
            if "nodes" in line and "/" in line:
                break
        job.send_signal(signal.SIGINT)
        job.communicate(timeout=100)
    assert job.returncode == 130
