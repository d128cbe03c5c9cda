"""Faults that are made on this machine are found by `jobs/doctor.py`, each with the command that mends it."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from crossmesh.ports import free_port

pytestmark = pytest.mark.integration

TOKEN = "a-token-that-nobody-prints"


@dataclass(frozen=True)
class Machine:
    """The job's world: everything in it is real, and of this test."""

    checkout: Path
    folder: Path
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()
    """Commands of a shell that the job's own mount namespace begins with."""

    @property
    def storage(self) -> Path:
        return self.folder / "storage"

    def doctor(self) -> dict[str, dict[str, str]]:
        """Run the job; findings by name."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "HF_", "CROSSMESH_"))}
        own = {"HOME": str(self.folder), "CROSSMESH_STORAGE": str(self.storage), "HF_HUB_OFFLINE": "1"}
        environment = {name: value for name, value in {**kept, **own, **self.variables}.items() if value}
        command = [sys.executable, str(self.checkout / "jobs" / "doctor.py"), "output=json", *self.arguments]
        if self.mounts:
            command = ["unshare", "-m", "sh", "-ec", "; ".join([*self.mounts, 'exec "$@"']), "sh", *command]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)
        assert done.stdout, done.stderr
        assert TOKEN not in done.stdout
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        found = {one["name"]: one for one in said["findings"]}
        assert done.returncode == int(any(one["status"] == "fault" for one in found.values()))
        return found


Made = Iterator[Machine]


def wrong_version(machine: Machine) -> Made:
    """Another rich before the real one on the path, as a stray installation leaves it."""
    package = machine.folder / "modules" / "filelock-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: filelock\nVersion: 1.0\n")
    yield Machine(machine.checkout, machine.folder, variables={"PYTHONPATH": str(package.parent)})


def full_disk(machine: Machine) -> Made:
    yield Machine(machine.checkout, machine.folder, mounts=(f"mount -t tmpfs -o size=2m tmpfs {machine.storage}",))


def no_append(machine: Machine) -> Made:
    """A file system on which appends fail: `sitecustomize` makes the kernel's answer that of such a mount."""
    modules = machine.folder / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(
        "import errno, os\nreal = os.open\n"
        "def refused(path, flags, *rest, **named):\n"
        f"    if flags & os.O_APPEND and str(path).startswith({str(machine.storage)!r}):\n"
        "        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)\n"
        "    return real(path, flags, *rest, **named)\nos.open = refused\n"
    )
    yield Machine(machine.checkout, machine.folder, variables={"PYTHONPATH": str(modules)})


def little_shared_memory(machine: Machine) -> Made:
    yield Machine(machine.checkout, machine.folder, mounts=("mount -t tmpfs -o size=64m tmpfs /dev/shm",))


def secret(file: Path, mode: int) -> None:
    file.parent.mkdir()
    file.write_text(TOKEN)
    file.chmod(mode)


def open_token(machine: Machine) -> Made:
    secret(machine.folder / ".ray" / "auth_token", 0o644)
    yield machine


def open_key(machine: Machine) -> Made:
    secret(machine.storage / "secrets" / "api_key", 0o640)
    yield machine


def open_port(machine: Machine) -> Made:
    """A process with the command line of an MLflow server, on all interfaces."""
    listen = "import socket,sys,time; s=socket.create_server(('0.0.0.0', 0)); print(s.getsockname()[1], flush=True); time.sleep(90)"
    process = subprocess.Popen([sys.executable, "-S", "-c", listen, "-m", "mlflow", "server"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield machine
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def no_authentication(machine: Machine) -> Made:
    yield Machine(machine.checkout, machine.folder, variables={"RAY_AUTH_MODE": "disabled"})


def programs_without(machine: Machine, missing: str) -> Machine:
    """A PATH that has everything but one program."""
    folder = machine.folder / "programs"
    folder.mkdir()
    for name in ("bwrap", "iverilog", "vvp", "sh", "git", "mount", "unshare"):
        where = shutil.which(name)
        if where and name != missing:
            (folder / name).symlink_to(where)
    return Machine(machine.checkout, machine.folder, variables={"PATH": str(folder)})


def no_sandbox(machine: Machine) -> Made:
    yield programs_without(machine, "bwrap")


def no_simulator(machine: Machine) -> Made:
    yield programs_without(machine, "iverilog")


def mlflow_away(machine: Machine) -> Made:
    yield Machine(machine.checkout, machine.folder, (f"tracking.uri=http://me:{TOKEN}@127.0.0.1:{free_port()}",))


def damaged_runs(machine: Machine) -> Made:
    (machine.storage / "mlflow.db").write_bytes(b"neither sqlite nor anything else" * 200)
    yield machine


def hub_away(machine: Machine) -> Made:
    variables = {"HF_HUB_OFFLINE": "", "HF_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
    yield Machine(machine.checkout, machine.folder, ("model.weights=hf://owner/name",), variables)


def hub_silent(machine: Machine) -> Made:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        variables = {"HF_HUB_OFFLINE": "", "HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        yield Machine(machine.checkout, machine.folder, ("data.source=hf://datasets/owner/name",), variables)


def old_driver(machine: Machine) -> Made:
    """The program that asks the driver answers as a machine with the previous one does."""
    machine = programs_without(machine, "")
    program = machine.folder / "programs" / "nvidia-smi"
    asked = 'case "$*" in *query-gpu*) echo "NVIDIA H100 80GB HBM3, 81559, 570.86.15";; *) echo "CUDA Version: 12.8";; esac'
    program.write_text(f"#!/bin/sh\n{asked}\n")
    program.chmod(0o755)
    yield machine


def no_accelerator(machine: Machine) -> Made:
    yield Machine(machine.checkout, machine.folder, ("hardware=gpu_2xh100",))


def no_interpreter(machine: Machine) -> Made:
    yield Machine(machine.checkout, machine.folder, variables={"CROSSMESH_PYTHON_TRAIN_JAX": str(machine.folder / "python")})


def cluster_away(machine: Machine) -> Made:
    yield Machine(machine.checkout, machine.folder, variables={"RAY_ADDRESS": f"127.0.0.1:{free_port()}"})


ROOT = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="a mount namespace needs root")
FAULTS = [
    (wrong_version, "lock", "filelock 1.0, wanted ==", "-m pip install --no-deps --require-hashes -r "),
    pytest.param(full_disk, "disk, storage.root", "GiB free", "export CROSSMESH_STORAGE=/folder/on/a/larger/disk", marks=ROOT),
    (no_append, "storage", "appending to a file that others read: Operation not supported", "sudo mount -t nfs SERVER:/SHARE"),
    pytest.param(little_shared_memory, "/dev/shm", "64 MiB", "sudo mount -o remount,size=2g /dev/shm", marks=ROOT),
    (open_token, "secret files", "auth_token (0644)", "chmod 600 {folder}/.ray/auth_token"),
    (open_key, "secret files", "api_key (0640)", "chmod 600 {folder}/storage/secrets/api_key"),
    (open_port, "listening ports", "0.0.0.0:", "kill "),
    (no_authentication, "Ray's token", "RAY_AUTH_MODE=disabled", "unset RAY_AUTH_MODE"),
    (no_sandbox, "sandbox", "bwrap", "sudo apt-get install -y bubblewrap"),
    (no_simulator, "simulator", "Icarus Verilog, which is not installed", "sudo apt-get install -y iverilog"),
    (mlflow_away, "MLflow", "does not answer", "-m mlflow server --host 127.0.0.1 --port "),
    (damaged_runs, "MLflow", "cannot be read", "mv {folder}/storage/mlflow.db {folder}/storage/mlflow.db.damaged"),
    (hub_away, "hub", "hf://owner/name cannot be had", "export HF_HUB_OFFLINE=1"),
    (hub_silent, "hub", "timed out", "export HF_HUB_OFFLINE=1"),
    (old_driver, "GPU driver", "570.86.15; CUDA 13 needs 580", "sudo apt-get install -y nvidia-driver-580-server"),
    (no_accelerator, "accelerators", "hardware=gpu_2xh100 is 2 x h100", "export RAY_ADDRESS=HEAD:6379"),
    (no_interpreter, "CROSSMESH_PYTHON_TRAIN_JAX", "is not an interpreter", "unset CROSSMESH_PYTHON_TRAIN_JAX"),
    (cluster_away, "cluster", "cannot connect to Ray", "unset RAY_ADDRESS"),
]


@pytest.fixture
def machine(checkout: Path, tmp_path: Path) -> Machine:
    (tmp_path / "storage").mkdir()
    return Machine(checkout, tmp_path)


@pytest.mark.parametrize(("make", "name", "found", "mend"), FAULTS)
def test_a_fault_is_found_with_the_command_that_mends_it(
    machine: Machine, make: Callable[[Machine], Made], name: str, found: str, mend: str
) -> None:
    with contextmanager(make)(machine) as faulty:
        one = faulty.doctor()[name]
    assert one["status"] == "fault", one
    assert found in one["found"]
    assert mend.format(folder=machine.folder) in one["mend"]


@pytest.mark.parametrize(("make", "name"), [(open_token, "secret files"), (damaged_runs, "MLflow")])
def test_the_command_mends_it(machine: Machine, make: Callable[[Machine], Made], name: str) -> None:
    with contextmanager(make)(machine) as faulty:
        subprocess.run(["sh", "-ec", faulty.doctor()[name]["mend"]], check=True)
        assert faulty.doctor()[name]["status"] == "ok"
