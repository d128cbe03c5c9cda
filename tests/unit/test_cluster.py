"""Decisions of a Ray session, with no Ray behind them."""

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from crossmesh import cluster
from crossmesh.errors import InputError
from crossmesh.spec.experiment import StorageSpec


class FakeRay:
    """Stands in for the module: `failures` are raised by the first calls of `init`."""

    exceptions = SimpleNamespace(RayTaskError=RuntimeError)

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.inits: list[dict[str, object]] = []
        self.seen: list[dict[str, str]] = []
        self.shutdowns = 0

    def is_initialized(self) -> bool:
        return False

    def init(self, **arguments: object) -> None:
        self.inits.append(arguments)
        self.seen.append({name: os.environ.get(name, "") for name in ("RAY_TMPDIR", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")})
        if self.failures:
            raise self.failures.pop(0)

    def shutdown(self) -> None:
        self.shutdowns += 1

    def get_runtime_context(self) -> SimpleNamespace:
        return SimpleNamespace(gcs_address="127.0.0.1:1234")


@pytest.fixture(autouse=True)
def no_ray_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


TIMEOUT = Exception("The current node timed out during startup. This could happen because some of the raylet failed to startup.")


def test_a_slow_start_is_tried_again_and_leaves_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeRay(TIMEOUT, TIMEOUT)
    monkeypatch.setattr(cluster, "ray", fake)
    with cluster.ray_session(StorageSpec(str(tmp_path))) as session:
        assert session.local
        assert session.folder is not None
        assert session.folder.is_dir()
        assert len(str(session.folder)) < 20
    assert len(fake.inits) == 3
    assert not session.folder.exists()
    assert "RAY_TMPDIR" not in os.environ


def test_other_failures_and_the_third_timeout_are_raised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for failures, tries in (((ValueError("bad"),), 1), ((TIMEOUT, TIMEOUT, TIMEOUT), 3)):
        fake = FakeRay(*failures)
        monkeypatch.setattr(cluster, "ray", fake)
        with pytest.raises(type(failures[-1])), cluster.ray_session(StorageSpec(str(tmp_path))):
            pytest.fail("the session must not open")
        assert len(fake.inits) == tries
        assert not Path(fake.seen[0]["RAY_TMPDIR"]).exists()


def test_a_local_ray_is_told_to_stay_on_the_loopback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeRay()
    monkeypatch.setattr(cluster, "ray", fake)
    with cluster.ray_session(StorageSpec(str(tmp_path))):
        pass
    assert fake.inits[0]["_node_ip_address"] == "127.0.0.1"
    assert fake.seen[0]["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert int(str(fake.inits[0]["num_cpus"])) >= 2


def test_an_address_where_nothing_listens_is_the_users_error_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeRay()
    monkeypatch.setattr(cluster, "ray", fake)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    with (
        pytest.raises(InputError, match=rf"RAY_ADDRESS='127\.0\.0\.1:{port}': no Ray answers.*unset RAY_ADDRESS"),
        cluster.ray_session(StorageSpec(str(tmp_path))),
    ):
        pytest.fail("the session must not open")
    assert fake.inits == []


def test_the_users_cluster_is_left_running_and_a_loopback_address_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeRay()
    monkeypatch.setattr(cluster, "ray", fake)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with cluster.ray_session(StorageSpec(str(tmp_path))) as session:
            assert not session.local
    assert fake.inits[0]["address"] == address
    assert fake.seen[0] == {"RAY_TMPDIR": "", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    assert "_node_ip_address" not in fake.inits[0]


def test_sigterm_interrupts_like_ctrl_c_within_a_session_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cluster, "ray", FakeRay())
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), cluster.ray_session(StorageSpec(str(tmp_path))):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_token_is_made_for_its_owner_only(tmp_path: Path) -> None:
    token = tmp_path / "home" / ".ray" / "auth_token"
    cluster.secure_token()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert len(token.read_text()) == 64
    first = token.read_text()
    token.chmod(0o644)  # As Ray itself leaves it.
    cluster.secure_token()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert token.read_text() == first
    assert list(token.parent.iterdir()) == [token]


def test_a_token_given_otherwise_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "mine"))
    cluster.secure_token()
    assert not (tmp_path / "home" / ".ray").exists()


def test_processes_of_a_folder_are_found_by_their_environment_and_ended(tmp_path: Path) -> None:
    stubborn = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-c", stubborn], env={**os.environ, "RAY_TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    assert cluster.processes_of(tmp_path) == [process.pid]
    assert cluster.processes_of(tmp_path / "other") == []
    cluster.end_processes(tmp_path, grace_s=0.0, ask_s=0.5)
    assert process.wait(timeout=5) == -signal.SIGKILL
