"""Ray's own GCP provider with cluster.yaml, against a stand-in that holds every request against Google's discovery documents.

Nothing here is reached by SSH; `test_gcp_launcher.py` brings nodes up.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httplib2
import pytest
import yaml
from googleapiclient.errors import HttpError
from ray.autoscaler._private.commands import _bootstrap_config
from ray.autoscaler._private.gcp.node_provider import GCPNodeProvider
from ray.autoscaler._private.util import prepare_config
from ray.autoscaler.tags import TAG_RAY_LAUNCH_REQUEST, TAG_RAY_NODE_KIND, TAG_RAY_NODE_NAME, TAG_RAY_NODE_STATUS, TAG_RAY_USER_NODE_TYPE

from google_cloud.certificates import make_keys
from google_cloud.cloud import Cloud
from google_cloud.discovery import read, wrong_answer
from google_cloud.filters import matches
from google_cloud.launcher_file import PROJECT, REGION, ZONE, launcher_config
from google_cloud.server import Server, listen

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

WORKERS = ("tpu_v5p_8", "tpu_v6e_8", "gpu_2xh100")
SORTS = {"tpu_v5p_8": "v5p-8", "tpu_v6e_8": "v6e-8", "gpu_2xh100": "a3-highgpu-2g"}


@dataclass
class Launcher:
    """Ray's provider after `ray up` has prepared cluster.yaml, and what it talks to."""

    config: dict[str, Any]
    provider: GCPNodeProvider
    cloud: Cloud

    def create(self, node_type: str) -> dict[str, Any]:
        tags = {
            TAG_RAY_NODE_NAME: "ray-crossmesh-worker",
            TAG_RAY_NODE_KIND: "worker",
            TAG_RAY_NODE_STATUS: "uninitialized",
            TAG_RAY_USER_NODE_TYPE: node_type,
            TAG_RAY_LAUNCH_REQUEST: "5f6e2b1c-7f3f-4c53-8a4d-0f5d6e7a8b9c",
        }
        node = self.config["available_node_types"][node_type]
        made: dict[str, Any] = self.provider.create_node_with_resources_and_labels(
            node["node_config"], tags, 1, node["resources"], node.get("labels", {})
        )
        return made

    def nodes(self) -> list[str]:
        found: list[str] = self.provider.non_terminated_nodes({})
        return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The stand-in, which this process takes for Google; every request to it was valid."""
    folder = tmp_path_factory.mktemp("google")
    shared = Server(Cloud(PROJECT, REGION, ZONE), make_keys(folder, PROJECT))
    with pytest.MonkeyPatch.context() as patch:
        _answer_for_google(patch, listen(shared, ("127.0.0.1", 0), tls=True))
        for name in ("https_proxy", "HTTPS_PROXY"):
            patch.delenv(name, raising=False)
        patch.setenv("HOME", str(folder / "home"))  # Ray keeps its SSH keys there.
        patch.setenv("REQUESTS_CA_BUNDLE", str(shared.keys.authority))
        patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(shared.keys.account))
        patch.setattr(httplib2, "CA_CERTS", str(shared.keys.authority))  # HTTPLIB2_CA_CERTS, which it reads when it is imported.
        yield shared


@pytest.fixture(scope="module")
def config(server: Server, checkout: Path) -> dict[str, Any]:
    """cluster.yaml as `ray up` prepares it."""
    token = Path.home() / ".ray" / "auth_token"
    token.parent.mkdir(parents=True)
    token.write_text("token")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(checkout)
        prepared: dict[str, Any] = _bootstrap_config(prepare_config(launcher_config(checkout)), no_config_cache=True)
    return prepared


@pytest.fixture
def launcher(server: Server, config: dict[str, Any]) -> Iterator[Launcher]:
    yield Launcher(config, GCPNodeProvider(config["provider"], config["cluster_name"]), server.cloud)
    assert server.violations == []
    server.cloud.machines.clear()


def _answer_for_google(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """Let Google's names lead to `port` of this machine. A proxy would not do: httplib2 goes around it where PySocks is not installed."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
    resolve, connect = socket.getaddrinfo, socket.socket.connect

    def resolve_here(host: Any, *arguments: Any, **named: Any) -> Any:
        return found if str(host).endswith(".googleapis.com") else resolve(host, *arguments, **named)

    def connect_here(self: socket.socket, address: Any) -> None:
        connect(self, ("127.0.0.1", port) if str(address[0]).endswith(".googleapis.com") else address)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_here)
    monkeypatch.setattr(socket.socket, "connect", connect_here)


@pytest.fixture
def call() -> Callable[..., tuple[str, ...]]:
    def wrong(verb: str, path: str, body: Any = None, host: str = "compute.googleapis.com", **query: list[str]) -> tuple[str, ...]:
        found = read(host, verb, path, query, body)
        return ("no such method",) if found is None else found.wrong

    return wrong


def test_requests_are_judged_by_googles_documents(call: Callable[..., tuple[str, ...]]) -> None:
    instances = "/compute/v1/projects/p/zones/us-east5-a/instances"
    assert call("GET", instances, filter=["(status = RUNNING)"]) == ()
    assert call("GET", instances, filtre=["x"]) == ("unknown parameter filtre",)
    assert call("GET", instances, maxResults=["many"]) == ("maxResults='many' is not a number",)
    assert call("GET", instances, {}) == ("a body where none is allowed",)
    assert call("PUT", instances) == ("no such method",)
    assert call("GET", instances.replace("us-east5-a", "US")) == ("zone='US' does not match [a-z](?:[-a-z0-9]{0,61}[a-z0-9])?",)
    assert call("POST", instances, {}) == ("body: name is missing",)
    whole = {"name": "a", "scheduling": {"automaticRestart": False, "provisioningModel": "SPOT"}, "disks": [{"diskSizeGb": "200"}]}
    assert call("POST", instances, whole) == ()
    assert call("POST", instances, whole | {"scheduling": {"automaticRestart": "no"}}) == (
        "body.scheduling.automaticRestart: expected boolean, got 'no'",
    )
    (said,) = call("POST", instances, whole | {"scheduling": {"provisioningModel": "CHEAP"}})
    assert said.startswith("body.scheduling.provisioningModel: 'CHEAP' is not one of ")
    assert call("POST", instances, whole | {"disks": [{"diskSize": 1}]}) == ("body.disks[0]: unknown field diskSize",)
    assert call("POST", instances, whole | {"disks": {}}) == ("body.disks: expected a list, got dict",)
    assert call("POST", instances, whole | {"disks": [{"diskSizeGb": "big"}]}) == ("body.disks[0].diskSizeGb: expected int64, got 'big'",)
    assert call("POST", instances, whole | {"labelFingerprint": "%"}) == ("body.labelFingerprint: '%' is not in base64",)
    nodes = "/v2/projects/p/locations/us-east5-a/nodes"
    assert call("POST", nodes, {"acceleratorType": "v5p-8"}, "tpu.googleapis.com", nodeId=["a"]) == ()
    assert call("POST", nodes, {"machineType": "v5p-8"}, "tpu.googleapis.com", nodeId=["a"]) == ("body: unknown field machineType",)
    assert call("POST", nodes.replace("/v2/", "/v9/"), {}, "tpu.googleapis.com") == ("no such method",)


def test_answers_are_judged_by_googles_documents() -> None:
    assert wrong_answer("compute.googleapis.com", "compute.instances.get", {"status": "RUNNING"}) == []
    (said,) = wrong_answer("compute.googleapis.com", "compute.instances.get", {"status": "READY"})
    assert said.startswith("answer.status: 'READY' is not one of ")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(labels.a = x) AND (status = RUNNING)", True),
        ("(labels.a = y) AND (status = RUNNING)", False),
        ("((labels.a = y) OR (status = RUNNING)) AND (NOT labels.tpu_cores:*)", True),
        ("(NOT labels.a:*)", False),
    ],
)
def test_lists_are_filtered_as_compute_filters(text: str, found: bool) -> None:
    assert matches({"labels": {"a": "x"}, "status": "RUNNING"}, text) is found


@pytest.mark.parametrize("text", ["labels.a ~ x", "(status = RUNNING", "AND", "status RUNNING"])
def test_a_filter_that_compute_would_not_take_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Invalid value for field 'filter'"):
        matches({}, text)


def test_cluster_yaml_is_prepared_by_rays_own_bootstrap(launcher: Launcher, server: Server) -> None:
    assert {"iam.projects.serviceAccounts.create", "cloudresourcemanager.projects.setIamPolicy"} < set(server.calls)
    assert [key.split()[0] for key in launcher.cloud.ssh_keys] == ["ssh-rsa"]
    assert Path(launcher.config["auth"]["ssh_private_key"]).stat().st_mode & 0o077 == 0
    assert launcher.nodes() == []


def test_every_node_type_is_made_listed_labeled_and_deleted(launcher: Launcher) -> None:
    for node_type in WORKERS:
        launcher.create(node_type)
    assert {launcher.provider.node_tags(node)[TAG_RAY_USER_NODE_TYPE] for node in launcher.nodes()} == set(WORKERS)
    for node in launcher.nodes():
        assert launcher.provider.is_running(node)
        assert launcher.provider.internal_ip(node).startswith("10.128.0.")
        assert launcher.provider.external_ip(node).startswith("203.0.113.")
        launcher.provider.set_node_tags(node, {TAG_RAY_NODE_STATUS: "up-to-date"})
    assert {launcher.provider.node_tags(node)[TAG_RAY_NODE_STATUS] for node in launcher.nodes()} == {"up-to-date"}
    assert launcher.provider.non_terminated_nodes({TAG_RAY_NODE_STATUS: "uninitialized"}) == []
    launcher.provider.terminate_nodes(launcher.nodes())
    assert launcher.nodes() == []
    assert launcher.cloud.machines == {}
    assert {machine.sort for machine in launcher.cloud.history} == set(SORTS.values())


@pytest.mark.parametrize("node_type", ["tpu_v5p_8", "gpu_2xh100"])
@pytest.mark.parametrize(("fault", "said"), [("stockout", "POOL_EXHAUSTED|no more capacity"), ("quota", "(?i)quota.*exceeded")])
def test_what_google_refuses_is_raised_in_its_words_and_leaves_nothing(launcher: Launcher, node_type: str, fault: str, said: str) -> None:
    launcher.cloud.break_next(fault, SORTS[node_type])
    with pytest.raises(Exception, match=said):
        launcher.create(node_type)
    assert launcher.nodes() == []
    launcher.create(node_type)  # And comes when there is one.
    assert len(launcher.nodes()) == 1


@pytest.mark.parametrize("node_type", ["tpu_v5p_8", "gpu_2xh100"])
def test_a_half_created_node_is_seen_and_can_be_deleted(launcher: Launcher, node_type: str) -> None:
    launcher.cloud.break_next("half_created", SORTS[node_type])
    said: list[str] = []

    def create() -> None:
        with pytest.raises(Exception, match="was deleted") as raised:
            launcher.create(node_type)
        said.append(str(raised.value))

    made = threading.Thread(target=create, daemon=True)
    made.start()
    while not launcher.cloud.machines:
        made.join(0.05)
    other = GCPNodeProvider(launcher.config["provider"], launcher.config["cluster_name"])
    (node,) = other.non_terminated_nodes({})
    assert not other.is_running(node)
    other.terminate_node(node)
    made.join(20)
    assert len(said) == 1
    assert launcher.nodes() == []
    assert launcher.cloud.machines == {}


@pytest.mark.parametrize("node_type", ["tpu_v5p_8", "gpu_2xh100"])
def test_a_preempted_node_no_longer_counts(launcher: Launcher, node_type: str) -> None:
    launcher.create(node_type)
    launcher.cloud.preempt(next(iter(launcher.cloud.machines)))
    assert launcher.nodes() == []
    if node_type == "gpu_2xh100":
        assert launcher.cloud.machines == {}  # As its instanceTerminationAction says: a stopped machine's disk would go on being paid.


def test_another_project_is_refused(launcher: Launcher) -> None:
    provider = GCPNodeProvider({**launcher.config["provider"], "project_id": "of-somebody-else"}, "crossmesh")
    with pytest.raises(HttpError, match="no access to project"):
        provider.non_terminated_nodes({})


def test_the_file_that_is_tested_is_the_file_that_is_shipped(checkout: Path) -> None:
    shipped = yaml.safe_load((checkout / "cluster.yaml").read_text())
    own = launcher_config(checkout)
    assert own["provider"].pop("project_id") != shipped["provider"].pop("project_id")
    changed = {key for key in shipped if shipped[key] != own[key]}
    assert changed == {"initialization_commands"}
