"""Decisions of a Ray session, with no Ray behind them."""

import os
import signal
import socket
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from crossmesh.cluster import local, session
from crossmesh.config.services import StorageSpec
from crossmesh.errors import InputError
from crossmesh.hardware.catalogue import find_slice


class FakeRay:
    """Stands in for the module: `failures` are raised by the first calls of `init`."""

    exceptions = SimpleNamespace(RayTaskError=RuntimeError, AuthenticationError=PermissionError)

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.inits: list[dict[str, object]] = []
        self.seen: list[dict[str, str]] = []
        self.shutdowns = 0
        self.resources: dict[str, float] = {}

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def is_initialized(self) -> bool:
        return False

    def init(self, **arguments: object) -> None:
        self.inits.append(arguments)
        self.seen.append(
            {name: os.environ.get(name, "") for name in ("RAY_TMPDIR", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_worker_niceness")}
        )
        if self.failures:
            raise self.failures.pop(0)

    def shutdown(self) -> None:
        self.shutdowns += 1

    def get_runtime_context(self) -> SimpleNamespace:
        return SimpleNamespace(gcs_address="127.0.0.1:1234")


def use(monkeypatch: pytest.MonkeyPatch, fake: FakeRay) -> None:
    for module in (session, local):
        monkeypatch.setattr(module, "ray", fake)


@pytest.fixture(autouse=True)
def no_ray_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


TIMEOUT = Exception("The current node timed out during startup. This could happen because some of the raylet failed to startup.")


def test_a_slow_start_is_tried_again_and_leaves_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeRay(TIMEOUT, TIMEOUT)
    use(monkeypatch, fake)
    with session.ray_session(StorageSpec(str(tmp_path))) as opened:
        assert opened.local
        assert opened.folder is not None
        assert opened.folder.is_dir()
        assert len(str(opened.folder)) < 20
    assert len(fake.inits) == 3
    assert not opened.folder.exists()
    assert "RAY_TMPDIR" not in os.environ


def test_other_failures_and_the_third_timeout_are_raised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for failures, tries in (((ValueError("bad"),), 1), ((TIMEOUT, TIMEOUT, TIMEOUT), 3)):
        fake = FakeRay(*failures)
        use(monkeypatch, fake)
        with pytest.raises(type(failures[-1])), session.ray_session(StorageSpec(str(tmp_path))):
            pytest.fail("the session must not open")
        assert len(fake.inits) == tries
        assert not Path(fake.seen[0]["RAY_TMPDIR"]).exists()


def test_a_local_ray_is_told_to_stay_on_the_loopback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeRay()
    use(monkeypatch, fake)
    with session.ray_session(StorageSpec(str(tmp_path))):
        pass
    assert fake.inits[0]["_node_ip_address"] == "127.0.0.1"
    assert fake.seen[0]["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert int(str(fake.inits[0]["num_cpus"])) >= 2


@pytest.mark.parametrize(("users", "told"), [(None, "0"), ("15", "15")])
def test_workers_of_a_local_ray_have_the_priority_of_the_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, users: str | None, told: str
) -> None:
    if users is not None:
        monkeypatch.setenv("RAY_worker_niceness", users)
    fake = FakeRay()
    use(monkeypatch, fake)
    with session.ray_session(StorageSpec(str(tmp_path))):
        pass
    assert fake.seen[0]["RAY_worker_niceness"] == told


def test_an_address_where_nothing_listens_is_the_users_error_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeRay()
    use(monkeypatch, fake)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    with (
        pytest.raises(InputError, match=rf"RAY_ADDRESS='127\.0\.0\.1:{port}': cannot connect to Ray.*unset RAY_ADDRESS"),
        session.ray_session(StorageSpec(str(tmp_path))),
    ):
        pytest.fail("the session must not open")
    assert fake.inits == []


@pytest.mark.parametrize(
    ("address", "said"), [("nonsense", "is not an address"), (":6379", "is not an address"), ("auto", "cannot connect to Ray")]
)
def test_an_address_that_names_no_ray_is_the_users_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str, said: str) -> None:
    def none_found(*_arguments: object) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    fake = FakeRay()
    use(monkeypatch, fake)
    monkeypatch.setattr(session, "newest_local_address", none_found)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(InputError, match=f"RAY_ADDRESS='{address}'.*{said}"), session.ray_session(StorageSpec(str(tmp_path))):
        pytest.fail("the session must not open")
    assert fake.inits == []


def test_auto_is_looked_up_and_seen_to_answer_before_ray_tries_for_minutes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeRay()
    use(monkeypatch, fake)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(session, "newest_local_address", lambda: address)
        monkeypatch.setenv("RAY_ADDRESS", "auto")
        with (
            pytest.raises(InputError, match=f"RAY_ADDRESS='{address}': cannot connect to Ray"),
            session.ray_session(StorageSpec(str(tmp_path))),
        ):
            pytest.fail("the session must not open")
        server.listen()
        with session.ray_session(StorageSpec(str(tmp_path))) as opened:
            assert not opened.local
    assert [init["address"] for init in fake.inits] == ["auto"]


@pytest.mark.parametrize("refused", [ConnectionError("GCS did not answer"), PermissionError("no token")])
def test_a_cluster_that_wants_a_token_says_how_to_give_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refused: Exception) -> None:
    use(monkeypatch, FakeRay(refused))
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(InputError, match="RAY_AUTH_MODE=token"), session.ray_session(StorageSpec(str(tmp_path))):
            pytest.fail("the session must not open")


def test_local_in_rays_own_words_is_our_local_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeRay()
    use(monkeypatch, fake)
    monkeypatch.setenv("RAY_ADDRESS", "local")
    with session.ray_session(StorageSpec(str(tmp_path))) as opened:
        assert opened.local
    assert fake.inits[0]["_node_ip_address"] == "127.0.0.1"


def test_chips_that_a_local_ray_lacks_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRay()
    use(monkeypatch, fake)
    there = {"GPU": 4, "TPU": 0}

    def manager(kind: str) -> SimpleNamespace:
        seen = ["0"] if kind == "GPU" else None  # One of four is visible.
        return SimpleNamespace(
            get_current_node_num_accelerators=lambda: there[kind], get_current_process_visible_accelerator_ids=lambda: seen
        )

    monkeypatch.setattr("ray._private.accelerators.get_accelerator_manager_for_resource", manager)
    gpus, tpus = find_slice("gpu_2xh100").device, find_slice("tpu_v5p_8").device
    session.require_chips(find_slice("cpu").device, 1)
    session.require_chips(gpus, 1)
    with pytest.raises(InputError, match=r"GPU chips asked for: 2 \(h100\); this machine has 1\..*RAY_ADDRESS"):
        session.require_chips(gpus, 2)
    with pytest.raises(InputError, match=r"TPU chips asked for: 4 \(v5p\); this machine has 0"):
        session.require_chips(tpus, 4)
    fake.resources = {"CPU": 2.0, "GPU": 2.0}  # What Ray has once it is there.
    monkeypatch.setattr(fake, "is_initialized", lambda: True)
    session.require_chips(gpus, 2)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    session.require_chips(tpus, 4)


def test_the_users_cluster_is_left_running_and_a_loopback_address_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeRay()
    use(monkeypatch, fake)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with session.ray_session(StorageSpec(str(tmp_path))) as opened:
            assert not opened.local
    assert fake.inits[0]["address"] == address
    assert fake.seen[0] == {"RAY_TMPDIR": "", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_niceness": ""}
    assert "_node_ip_address" not in fake.inits[0]


def test_sigterm_interrupts_like_ctrl_c_within_a_session_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, FakeRay())
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), session.ray_session(StorageSpec(str(tmp_path))):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_token_is_made_for_its_owner_only(tmp_path: Path) -> None:
    token = tmp_path / "home" / ".ray" / "auth_token"
    local.secure_token()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert len(token.read_text()) == 64
    first = token.read_text()
    token.chmod(0o644)  # As Ray itself leaves it.
    local.secure_token()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert token.read_text() == first
    assert list(token.parent.iterdir()) == [token]


def test_a_token_given_otherwise_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "mine"))
    local.secure_token()
    assert not (tmp_path / "home" / ".ray").exists()
