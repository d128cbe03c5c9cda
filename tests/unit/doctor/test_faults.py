"""Faults that are made here are found, each with the command that mends it; what is as it should be is not a fault."""

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from crossmesh.cluster import local
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.planning import PlanSpec
from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.config.serving import ServeSpec
from crossmesh.config.training import DataSpec, HardwareSpec
from crossmesh.doctor import accelerators, judging, listeners, machine, packages, private_files, services, storage
from crossmesh.doctor.accelerators import SeenAccelerators, SeenGpu, accelerators_finding, cost_finding, driver_finding, seen_here
from crossmesh.doctor.finding import FAULT, NOTE, OK, Finding
from crossmesh.evaluate import judge, sandbox
from crossmesh.hardware.catalogue import find_slice
from crossmesh.ports import free_port
from crossmesh.storage_check import Mount

H100 = SeenGpu("NVIDIA H100 80GB HBM3", 81559 << 20, "580.95.05")
A100 = SeenGpu("NVIDIA A100-SXM4-40GB", 40960 << 20, "535.183.01")
HUB = ("hf://owner/name",)
TODAY = date(2026, 12, 1)


@pytest.fixture(autouse=True)
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home without a token, and none of the variables that mean something."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [one for one in os.environ if one.startswith(("RAY_", "HF_", "CROSSMESH_PYTHON", "CROSSMESH_EMULATE"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def spec(tmp_path: Path) -> ExperimentSpec:
    root = tmp_path / "storage"
    root.mkdir()
    return ExperimentSpec(storage=StorageSpec(str(root)))


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only folder with programs."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for cached in (sandbox._working_bubblewrap, judge.simulator_version):
        cached.cache_clear()
    yield folder
    for cached in (sandbox._working_bubblewrap, judge.simulator_version):
        cached.cache_clear()


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def by_name(findings) -> dict[str, Finding]:
    return {one.name: one for one in findings}


def assert_fault(found: Finding, *mends: str) -> None:
    assert found.status == FAULT, found
    assert [part for part in mends if part not in found.mend] == [], found.mend


# Packages.


def locks(folder: Path) -> Path:
    (folder / "head.txt").write_text(
        "ray==2.60.0 \\\n    --hash=sha256:00\n    # via crossmesh\nhydra-core==1.3.8 \\\n    --hash=sha256:11\n"
    )
    (folder / "cpu.txt").write_text("ray==2.60.0\nhydra-core==1.3.8\njax==0.10.2\nold==1 ; python_version < '3'\nPy_Yaml==6.0 # via ray\n")
    (folder / "overrides-cpu.txt").write_text("# Alone.\ntorch==2.13.0\ntorchvision ; python_version < '3'\n")
    return folder


AS_LOCKED = {"ray": "2.60.0", "hydra-core": "1.3.8", "jax": "0.10.2", "py-yaml": "6.0", "torch": "2.13.0+cpu", "other": "1"}


@pytest.mark.parametrize(
    ("changes", "found", "mend"),
    [
        ({"jax": "0.9"}, "1 of 4 packages are not as in requirements/cpu.txt: jax 0.9, wanted ==0.10.2", "cpu.txt"),
        ({"py-yaml": None}, "py-yaml missing, wanted ==6.0", "--no-deps --require-hashes -r"),
        ({"torch": "2.12.0"}, "torch 2.12.0, wanted ==2.13.0", "-m pip install torch==2.13.0"),
    ],
)
def test_a_package_of_another_version(tmp_path, changes, found, mend):
    installed = {name: version for name, version in {**AS_LOCKED, **changes}.items() if version}
    one = packages.lock_finding(locks(tmp_path), installed)
    assert_fault(one, f"{sys.executable} -m pip install", mend)
    assert found in one.found
    assert ("torch" in one.mend) == ("torch" in changes)


def test_the_lock_of_an_environment_is_the_one_whose_packages_it_has(tmp_path):
    folder = locks(tmp_path)
    assert packages.lock_finding(folder, AS_LOCKED).found == "4 packages as in requirements/cpu.txt"
    head = {name: AS_LOCKED[name] for name in ("ray", "hydra-core")}
    assert packages.lock_finding(folder, head).found == "2 packages as in requirements/head.txt"
    assert_fault(packages.lock_finding(folder, {**head, "ray": "2.59.0"}), "head.txt")
    assert packages.lock_finding(tmp_path / "none", head).status == NOTE


def test_every_lock_that_is_shipped_can_be_read(checkout):
    files = [file for file in (checkout / "requirements").glob("*.txt") if not file.name.startswith("overrides")]
    assert len(files) >= 8
    for file in files:
        pinned = packages.pins(file)
        assert pinned
        assert all(str(wanted).startswith("==") for wanted in pinned.values()), file
    assert set(packages.pins(checkout / "requirements" / "overrides-cpu.txt")) == {"torch"}


def test_an_interpreter_that_does_not_exist(tmp_path):
    environ = {"CROSSMESH_PYTHON_TRAIN_JAX": str(tmp_path / "python"), "CROSSMESH_PYTHON_TRAIN_TORCH": sys.executable}
    (one,) = packages.interpreter_findings(environ)
    assert_fault(one, "unset CROSSMESH_PYTHON_TRAIN_JAX")


# Room and time.


def test_full_disks_small_shared_memory_and_little_memory(tmp_path):
    gib = 1 << 30
    assert_fault(machine.disk_finding("storage.root", tmp_path, gib // 2, "CROSSMESH_STORAGE"), "export CROSSMESH_STORAGE=")
    assert machine.disk_finding("storage.root", tmp_path, 5 * gib, "CROSSMESH_STORAGE").status == NOTE
    assert machine.disk_finding("storage.root", tmp_path, 50 * gib, "CROSSMESH_STORAGE").status == OK
    assert_fault(machine.shared_memory_finding(64 << 20), "mount -o remount,size=2g /dev/shm", "--shm-size=2g")
    assert machine.shared_memory_finding(512 << 20).status == OK
    assert machine.shared_memory_finding(None).status == NOTE
    assert machine.SHARED_MEMORY == local._OBJECT_STORE_BYTES
    assert_fault(machine.memory_finding(gib), "ps -eo")
    assert [machine.memory_finding(size * gib).status for size in (3, 8)] == [NOTE, OK]


def test_a_container_has_the_memory_of_its_limit(tmp_path, monkeypatch, spec):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(machine, "_CGROUPS", (limit,))
    limit.write_text(f"{1 << 30}\n")
    assert_fault(next(iter(machine.check_memory(spec))), "ps -eo")
    limit.write_text("max\n")
    assert "1.0 GiB available" not in next(iter(machine.check_memory(spec))).found


@pytest.mark.parametrize("hardware", ["cpu", "tpu_v5p_8"])
def test_a_clock_that_nothing_synchronizes_is_a_fault_where_several_machines_take_part(spec, programs, hardware):
    spec = replace(spec, hardware=HardwareSpec(hardware))
    assert next(iter(machine.check_clock(spec))).status == NOTE  # Neither program is there.
    program(programs, "timedatectl", "echo no")
    found = next(iter(machine.check_clock(spec)))
    assert (found.status, found.mend) == (NOTE if hardware == "cpu" else FAULT, "sudo timedatectl set-ntp true")
    program(programs, "timedatectl", "exit 1")
    program(programs, "chronyc", "echo 'Leap status     : Not synchronised'")
    assert next(iter(machine.check_clock(spec))).found == "not synchronized"
    program(programs, "chronyc", "echo 'Leap status     : Normal'")
    assert next(iter(machine.check_clock(spec))).status == OK


# Storage and secrets.


def test_a_storage_that_is_a_bucket(spec, monkeypatch):
    assert [one.status for one in storage.check_storage(spec)] == [OK]
    monkeypatch.setattr(storage, "mount_of", lambda _: Mount("/mnt", "fuse.gcsfuse", "bucket"))
    (one,) = storage.check_storage(spec)
    assert_fault(one, "mount -t nfs", "export CROSSMESH_STORAGE=")
    assert "checkpoint.target=gs://" in one.found


def test_a_storage_without_fsync(spec, monkeypatch):
    def refuse(_descriptor):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    (one,) = storage.check_storage(spec)
    assert_fault(one, "export CROSSMESH_STORAGE=")
    assert "fsync of files and folders: Invalid argument" in one.found


def test_a_share_whose_locks_do_not_reach_other_machines(spec, monkeypatch):
    monkeypatch.setattr(storage, "mount_of", lambda _: Mount("/mnt", "nfs", "10.0.0.2:/vol1", ("rw", "nolock")))
    assert_fault(by_name(storage.check_storage(spec))["storage, locks"], "mount -t nfs -o hard 10.0.0.2:/vol1 /mnt")
    monkeypatch.setattr(storage, "mount_of", lambda _: Mount("/mnt", "nfs4", "10.0.0.2:/vol1", ("rw", "local_lock=none")))
    assert [one.status for one in storage.check_storage(spec)] == [OK]


def test_secret_files_that_others_may_read(spec, tmp_path):
    token = tmp_path / "home" / ".ray" / "auth_token"
    key, tls = spec.storage.path / "secrets" / "api_key", tmp_path / "key.pem"
    for file in (token, key, tls):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("a-secret-that-nobody-prints")
        file.chmod(0o600)
    spec = replace(spec, serve=ServeSpec(tls_cert=str(tmp_path / "cert.pem"), tls_key=str(tls)))
    assert {one.status for one in private_files.check_private_files(spec)} == {OK}
    for file in (token, key, tls):
        file.chmod(0o644)
        one = by_name(private_files.check_private_files(spec))["secret files"]
        assert_fault(one, f"chmod 600 {file}")
        assert "a-secret" not in f"{one.found}{one.mend}"
        subprocess.run(one.mend.split(), check=True)
        assert {one.status for one in private_files.check_private_files(spec)} == {OK}


def test_ray_without_authentication(spec, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert_fault(by_name(private_files.check_private_files(spec))["Ray's token"], "unset RAY_AUTH_MODE")
    monkeypatch.delenv("RAY_AUTH_MODE")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert by_name(private_files.check_private_files(spec))["Ray's token"].status == NOTE
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a-secret-that-nobody-prints")
    assert by_name(private_files.check_private_files(spec))["Ray's token"].found == "in RAY_AUTH_TOKEN"


# Ports.

LISTEN = "import socket,sys,time; s=socket.create_server((sys.argv[1], 0)); print(s.getsockname()[1], flush=True); time.sleep(60)"


@pytest.mark.parametrize(
    ("address", "arguments", "mode", "status"),
    [
        ("0.0.0.0", ["/usr/lib/ray/core/raylet"], "disabled", FAULT),
        ("0.0.0.0", ["/usr/lib/ray/core/raylet"], "token", NOTE),
        ("0.0.0.0", ["-m", "mlflow", "server"], "", FAULT),
        ("0.0.0.0", ["jobs/serve.py", "serve.host=0.0.0.0"], "", NOTE),
        ("0.0.0.0", ["/opt/venv/bin/crossmesh", "serve", "serve.host=0.0.0.0"], "", NOTE),
        ("0.0.0.0", ["-m", "crossmesh", "ui"], "", FAULT),
        ("127.0.0.1", ["/usr/lib/ray/core/raylet"], "disabled", OK),
        ("0.0.0.0", ["something", "else"], "", OK),
    ],
)
def test_a_port_that_others_reach(address, arguments, mode, status):
    command = [sys.executable, "-S", "-c", LISTEN, address, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "RAY_AUTH_MODE": mode})
    try:
        port = int(process.stdout.readline())
        ours = tuple(one for one in listeners._listeners() if one.pid == process.pid)
        found = listeners.listeners_finding(ours)
        assert found.status == status, found
        assert (f"{address}:{port}" in found.found) == (status != OK)
        if status == FAULT:
            assert_fault(found, f"kill {process.pid} ", "RAY_AUTH_MODE=token" if "ray" in arguments[0] else "jobs/ui.py")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_addresses_beyond_loopback():
    assert [address for address in ("127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1") if listeners.beyond_loopback(address)] == []
    assert [address for address in ("0.0.0.0", "::", "10.0.0.1", "fe80::1%eth0") if not listeners.beyond_loopback(address)] == []
    assert not listeners.asks("Ray", "raylet", {}, token=False)
    assert listeners.asks("Ray", "raylet", {}, token=True)
    assert not listeners.asks("crossmesh", "jobs/serve.py serve.allow_anonymous=true", {}, token=True)


# The judge.


def test_no_sandbox_and_no_simulator(spec, programs):
    found = by_name(judging.check_judging(spec))
    assert_fault(found["sandbox"], "sudo apt-get install -y bubblewrap")
    assert_fault(found["simulator"], "sudo apt-get install -y iverilog")


def test_a_kernel_that_lets_bubblewrap_make_no_namespace(spec, programs, tmp_path, checkout):
    program(programs, "bwrap", "echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1")
    switch = tmp_path / "apparmor_restrict_unprivileged_userns"
    switch.write_text("1\n")
    found = judging.sandbox_finding("bubblewrap", switch)
    assert_fault(found, f"bash {checkout}/requirements/install-judge.sh")
    assert "AppArmor" in found.found
    switch.write_text("0\n")
    assert "seccomp=unconfined" in judging.sandbox_finding("bubblewrap", switch).mend
    assert judging.sandbox_finding("none", switch).status == NOTE


@pytest.mark.skipif(shutil.which("bwrap") is None or shutil.which("iverilog") is None, reason="needs bubblewrap and iverilog")
def test_a_sandbox_and_a_simulator(spec):
    assert {one.status for one in judging.check_judging(spec)} == {OK}


# What answers over the network.


@pytest.fixture
def server() -> Iterator[tuple[str, list[int]]]:
    statuses = [200]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(statuses[0])
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_):
            pass

    httpd = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://user:a-secret@127.0.0.1:{httpd.server_port}", statuses
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def test_a_tracking_server_that_is_away(spec, server):
    address, statuses = server
    port = address.rpartition(":")[2]
    tracked = replace(spec, tracking=TrackingSpec(f"http://127.0.0.1:{port}"))
    assert [one.status for one in services.check_tracking(tracked)] == [OK]
    statuses[0] = 401
    assert [one.status for one in services.check_tracking(tracked)] == [NOTE]
    statuses[0] = 502
    (one,) = services.check_tracking(tracked)
    assert_fault(one, "-m mlflow server --host 127.0.0.1", f"--port {port}")
    assert "status 502" in one.found
    dead = free_port()
    (one,) = services.check_tracking(replace(spec, tracking=TrackingSpec(f"http://me:a-secret@127.0.0.1:{dead}")))
    assert_fault(one, f"--port {dead}")
    assert "a-secret" not in f"{one.found}{one.mend}"
    (one,) = services.check_tracking(replace(spec, tracking=TrackingSpec(f"postgresql://me:a-secret@127.0.0.1:{dead}/runs")))
    assert_fault(one, "tracking.uri=")
    assert "a-secret" not in one.found
    (one,) = services.check_tracking(replace(spec, tracking=TrackingSpec("relative/folder")))
    assert_fault(one, "tracking.uri=")


def test_a_damaged_store(spec):
    database = spec.storage.path / "mlflow.db"
    assert [one.status for one in services.check_tracking(spec)] == [OK]
    with sqlite3.connect(database) as store:
        store.execute("CREATE TABLE runs (name TEXT)")
    store.close()
    assert next(iter(services.check_tracking(spec))).found == f"0 runs in {database}"
    database.write_bytes(b"not a database, whatever its name says" * 100)
    (one,) = services.check_tracking(spec)
    assert_fault(one, f"mv {database} {database}.damaged")


def test_a_hub_that_is_away(server):
    address, statuses = server
    statuses[0] = 404  # It answers, whatever it says.
    up = services.hub_finding({"HF_ENDPOINT": f"http://127.0.0.1:{address.rpartition(':')[2]}"}, ())
    assert up.status == OK
    away = {"HF_ENDPOINT": f"http://me:a-secret@127.0.0.1:{free_port()}"}
    found = services.hub_finding(away, HUB)
    assert_fault(found, "export HF_HUB_OFFLINE=1")
    assert "hf://owner/name cannot be had" in found.found
    assert "a-secret" not in found.found
    assert services.hub_finding(away, ()).status == NOTE  # Nothing comes from it.
    assert services.hub_finding({**away, "HF_HUB_OFFLINE": "1"}, HUB).status == NOTE
    assert_fault(services.hub_finding({"HF_ENDPOINT": "file:///etc/passwd"}, HUB), "HF_HUB_OFFLINE")


def test_what_comes_from_the_hub(spec):
    assert services.hub_sources(spec) == ()
    served = replace(spec, serve=ServeSpec(adapters=("a:hf://me/a", "b:/folder")), data=DataSpec(source="hf://datasets/me/rows"))
    assert services.hub_sources(served) == ("hf://datasets/me/rows", "hf://me/a")


def test_a_hub_that_takes_connections_and_never_answers(monkeypatch):
    monkeypatch.setattr(services, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        found = services.hub_finding({"HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"}, HUB)
    assert_fault(found, "HF_HUB_OFFLINE")
    assert time.monotonic() - start < 3


# Accelerators.


@pytest.mark.parametrize(
    ("hardware", "seen", "cluster", "status"),
    [
        ("gpu_2xh100", SeenAccelerators(), None, FAULT),
        ("gpu_2xh100", SeenAccelerators((H100,)), None, FAULT),
        ("gpu_2xh100", SeenAccelerators((H100, H100)), None, OK),
        ("gpu_1xh100", SeenAccelerators((A100,)), None, FAULT),
        ("gpu_8xa100_80", SeenAccelerators((A100,) * 8), None, FAULT),
        ("gpu_8xa100_40", SeenAccelerators((A100,) * 8), None, OK),
        ("gpu_2xh100", SeenAccelerators(), "10.0.0.1:6379", NOTE),
        ("tpu_v5p_8", SeenAccelerators(tpus=4), None, OK),
        ("tpu_v5p_8", SeenAccelerators(tpus=1), None, FAULT),
        ("tpu_v5p_16", SeenAccelerators(tpus=4), None, FAULT),
        ("cpu", SeenAccelerators(), None, OK),
        ("cpu", SeenAccelerators((H100,)), None, NOTE),
    ],
)
def test_accelerators_that_are_not_those_that_were_chosen(hardware, seen, cluster, status):
    found = accelerators_finding(seen, find_slice(hardware), cluster=cluster, emulated=False)
    assert found.status == status, found
    if status == FAULT:
        assert_fault(found, "export RAY_ADDRESS=", "hardware=cpu")


def test_what_the_driver_says_is_read(programs, tmp_path):
    assert seen_here(tmp_path / "none") == SeenAccelerators()
    script = """case "$*" in
*query-gpu*) echo "NVIDIA H100 80GB HBM3, 81559, 580.95.05"; echo "NVIDIA H100 80GB HBM3, 81559, 580.95.05";;
*) echo "| NVIDIA-SMI 580.95.05    Driver Version: 580.95.05    CUDA Version: 13.0     |";;
esac"""
    program(programs, "nvidia-smi", script)
    seen = seen_here(tmp_path / "none")
    assert seen == SeenAccelerators((H100, H100), "13.0")
    assert str(seen) == "2 x NVIDIA H100 80GB HBM3, driver 580.95.05, CUDA 13.0"
    assert driver_finding(seen).status == OK
    assert_fault(driver_finding(SeenAccelerators((A100,))), "sudo apt-get install -y nvidia-driver-580-server")
    program(programs, "nvidia-smi", "echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver'; exit 9")
    assert seen_here(tmp_path / "none") == SeenAccelerators()


def test_tpus_are_counted_by_their_device_files(programs, tmp_path):
    for name in ("vfio/0", "vfio/1", "vfio/vfio", "accelerator"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert seen_here(tmp_path).tpus == 2
    for index in range(4):
        (tmp_path / f"accel{index}").touch()
    assert seen_here(tmp_path).tpus == 4


def test_what_an_hour_costs():
    wanted = find_slice("gpu_2xh100")
    price = wanted.price("spot")
    assert price is not None
    found = cost_finding(wanted, PlanSpec(price="spot"), price.read or TODAY)
    assert f"{price.usd_per_hour:g} USD an hour for hardware=gpu_2xh100, spot" in found.found
    assert cost_finding(wanted, PlanSpec(price="spot", price_max_age_days=1), date(2030, 1, 1)).status == NOTE
    nowhere = cost_finding(wanted, PlanSpec(region="moon-1"), TODAY)
    assert (nowhere.status, "no on_demand price" in nowhere.found) == (NOTE, True)
    unsold = cost_finding(
        replace(wanted, prices=(replace(price, unsold="Nothing is sold at this spot price"),)), PlanSpec(price="spot"), TODAY
    )
    assert (unsold.status, "Nothing is sold at this" in unsold.found) == (NOTE, True)
    assert cost_finding(find_slice("cpu"), PlanSpec(), TODAY).status == OK


def test_emulated_hardware_is_said(spec, monkeypatch):
    monkeypatch.setenv("CROSSMESH_EMULATE", "1")
    spec = replace(spec, hardware=HardwareSpec("gpu_2xh100"))
    assert by_name(accelerators.check_accelerators(spec))["accelerators"].mend == "unset CROSSMESH_EMULATE"
