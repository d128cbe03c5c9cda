"""Decisions of a Ray session, with no Ray behind them."""

import os
import signal
import socket
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import PlacementGroupID
from ray.util.placement_group import PlacementGroup

from crossmesh import cluster
from crossmesh.cluster import lacking
from crossmesh.environments import environment
from crossmesh.errors import InputError
from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.devices import Cpu, Gpu
from crossmesh.spec.services import StorageSpec


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


@pytest.mark.parametrize(("users", "told"), [(None, "0"), ("15", "15")])
def test_workers_of_a_local_ray_have_the_priority_of_the_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, users: str | None, told: str
) -> None:
    if users is not None:
        monkeypatch.setenv("RAY_worker_niceness", users)
    fake = FakeRay()
    monkeypatch.setattr(cluster, "ray", fake)
    with cluster.ray_session(StorageSpec(str(tmp_path))):
        pass
    assert fake.seen[0]["RAY_worker_niceness"] == told


def test_an_address_where_nothing_listens_is_the_users_error_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeRay()
    monkeypatch.setattr(cluster, "ray", fake)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    with (
        pytest.raises(InputError, match=rf"RAY_ADDRESS='127\.0\.0\.1:{port}': cannot connect to Ray.*unset RAY_ADDRESS"),
        cluster.ray_session(StorageSpec(str(tmp_path))),
    ):
        pytest.fail("the session must not open")
    assert fake.inits == []


@pytest.mark.parametrize(
    ("address", "said"), [("nonsense", "is no address"), (":6379", "is no address"), ("auto", "cannot connect to Ray")]
)
def test_an_address_that_names_no_ray_is_the_users_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str, said: str) -> None:
    def none_found(*_arguments: object) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    fake = FakeRay()
    monkeypatch.setattr(cluster, "ray", fake)
    monkeypatch.setattr(cluster.services, "get_ray_address_from_environment", none_found)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(InputError, match=f"RAY_ADDRESS='{address}'.*{said}"), cluster.ray_session(StorageSpec(str(tmp_path))):
        pytest.fail("the session must not open")
    assert fake.inits == []


def test_auto_is_looked_up_and_seen_to_answer_before_ray_tries_for_minutes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeRay()
    monkeypatch.setattr(cluster, "ray", fake)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(cluster.services, "get_ray_address_from_environment", lambda *_arguments: address)
        monkeypatch.setenv("RAY_ADDRESS", "auto")
        with (
            pytest.raises(InputError, match=f"RAY_ADDRESS='{address}': cannot connect to Ray"),
            cluster.ray_session(StorageSpec(str(tmp_path))),
        ):
            pytest.fail("the session must not open")
        server.listen()
        with cluster.ray_session(StorageSpec(str(tmp_path))) as session:
            assert not session.local
    assert [init["address"] for init in fake.inits] == ["auto"]


@pytest.mark.parametrize("refused", [ConnectionError("GCS did not answer"), PermissionError("no token")])
def test_a_cluster_that_wants_a_token_says_how_to_give_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refused: Exception) -> None:
    monkeypatch.setattr(cluster, "ray", FakeRay(refused))
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(InputError, match="RAY_AUTH_MODE=token"), cluster.ray_session(StorageSpec(str(tmp_path))):
            pytest.fail("the session must not open")


def test_local_in_rays_own_words_is_our_local_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeRay()
    monkeypatch.setattr(cluster, "ray", fake)
    monkeypatch.setenv("RAY_ADDRESS", "local")
    with cluster.ray_session(StorageSpec(str(tmp_path))) as session:
        assert session.local
    assert fake.inits[0]["_node_ip_address"] == "127.0.0.1"


def test_chips_that_a_local_ray_lacks_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRay()
    monkeypatch.setattr(cluster, "ray", fake)
    there = {"GPU": 4, "TPU": 0}

    def manager(kind: str) -> SimpleNamespace:
        seen = ["0"] if kind == "GPU" else None  # One of four is visible.
        return SimpleNamespace(
            get_current_node_num_accelerators=lambda: there[kind], get_current_process_visible_accelerator_ids=lambda: seen
        )

    monkeypatch.setattr(cluster, "get_accelerator_manager_for_resource", manager)
    gpus, tpus = find_slice("gpu_2xh100").device, find_slice("tpu_v5p_8").device
    cluster.require_chips(find_slice("cpu").device, 1)
    cluster.require_chips(gpus, 1)
    with pytest.raises(InputError, match=r"GPU chips asked for: 2 \(h100\); this machine has 1\..*RAY_ADDRESS"):
        cluster.require_chips(gpus, 2)
    with pytest.raises(InputError, match=r"TPU chips asked for: 4 \(v5p\); this machine has 0"):
        cluster.require_chips(tpus, 4)
    fake.resources = {"CPU": 2.0, "GPU": 2.0}  # What Ray has once it is there.
    monkeypatch.setattr(fake, "is_initialized", lambda: True)
    cluster.require_chips(gpus, 2)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    cluster.require_chips(tpus, 4)


def test_a_task_goes_to_a_node_with_the_environment_it_needs() -> None:
    gpus = find_slice("gpu_2xh100").device
    with cluster.task_options(environment("train/torch", gpus), gpus) as options:
        assert options["resources"] == {"accelerator_type:H100": 0.001}
        assert options["num_cpus"] == 0
    cpu = find_slice("cpu").device
    for kind, device in (("head", gpus), ("head", find_slice("tpu_v5p_16").device), ("train/torch", cpu)):
        with cluster.task_options(environment(kind, device), device) as options:
            assert options["resources"] == {}
            assert "scheduling_strategy" not in options


def test_a_worker_without_its_libraries_is_told_which_lock_has_them() -> None:
    said = "The remote function failed to import on the worker.\nModuleNotFoundError: No module named 'torch'"
    worker = environment("train/torch", Cpu())
    assert lacking(said, worker, Cpu()) == (
        "A worker of train/torch on cpu has no module 'torch': its environment (the one that runs Ray there) is not made from "
        "requirements/cpu.txt. On a cluster's node requirements/install-node.sh makes it. hardware=cpu is for one machine (`make install`)."
    )
    gpu = Gpu("h100", 2, "H100")
    assert lacking(said, replace(environment("train/torch", gpu), python="/there/python"), gpu).startswith(
        "A worker of train/torch on h100 has no module 'torch': its environment (/there/python) is not made from requirements/gpu.txt."
    )
    assert lacking("CUDA out of memory", worker, Cpu()) == ""


def test_a_task_for_tpu_slices_runs_on_a_host_of_them_while_all_their_hosts_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    group = PlacementGroup(PlacementGroupID.from_random())
    removed: list[PlacementGroup] = []

    def placement_group(bundles: list[dict[str, float]], **arguments: Any) -> PlacementGroup:
        asked.append({"bundles": bundles, **arguments})
        return group

    monkeypatch.setattr(cluster, "placement_group", placement_group)
    monkeypatch.setattr(cluster, "remove_placement_group", removed.append)
    tpus = find_slice("tpu_v5p_16").device
    with cluster.task_options(environment("train/jax", tpus), tpus, 2) as options:
        assert options["scheduling_strategy"].placement_group is group
        assert options["scheduling_strategy"].placement_group_bundle_index == 0
        assert not removed
    assert removed == [group]
    assert asked == [
        {
            "bundles": [{"accelerator_type:TPU-V5P": 0.001}] * 4,
            "strategy": "STRICT_SPREAD",
            "bundle_label_selector": [{"ray.io/tpu-pod-type": "v5p-16"}] * 4,
        }
    ]


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
    assert fake.seen[0] == {"RAY_TMPDIR": "", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_niceness": ""}
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


@pytest.mark.parametrize("ended", [True, False])
def test_a_task_that_has_ended_is_not_cancelled(monkeypatch: pytest.MonkeyPatch, ended: bool) -> None:
    cancelled: list[str] = []
    fake = SimpleNamespace(wait=lambda tasks, timeout: (tasks, []) if ended else ([], tasks), cancel=cancelled.append)
    monkeypatch.setattr(cluster, "ray", fake)
    cluster.cancel_task("task", 1.0)
    assert cancelled == ([] if ended else ["task"])
