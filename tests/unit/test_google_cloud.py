"""What cluster.yaml asks of Google Cloud is what its API documents know, and Ray's own provider and updater read the file as meant."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import googleapiclient
import pytest
import yaml
from ray.autoscaler._private.gcp.config import get_node_type
from ray.autoscaler._private.gcp.node import GCPNodeType
from ray.autoscaler._private.gcp.node_provider import GCPNodeProvider
from ray.autoscaler._private.providers import _get_node_provider_cls
from ray.autoscaler._private.updater import NodeUpdater

DOCUMENTS = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents"


@pytest.fixture(scope="module")
def launcher(checkout: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((checkout / "cluster.yaml").read_text()))


def unknown(value: Any, schema: dict[str, Any], schemas: dict[str, Any], path: str) -> list[str]:
    """Keys and enum values of `value` that the discovery document does not have."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"]]
    if isinstance(value, list):
        return [found for one in value for found in unknown(one, schema["items"], schemas, f"{path}[]")]
    if isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        wrong = [f"{path}.{key}" for key in value if key not in known]
        return wrong + [found for key in value.keys() & known.keys() for found in unknown(value[key], known[key], schemas, f"{path}.{key}")]
    kinds = {"string": str, "boolean": bool, "integer": int, "object": dict}
    fits = isinstance(value, kinds[schema["type"]]) or (schema.get("format") == "int64" and isinstance(value, int))
    allowed = schema.get("enum", [value])
    return [] if fits and value in allowed else [f"{path}={value!r}"]


def document(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DOCUMENTS / name).read_text())
    return loaded


def test_the_provider_of_the_file_can_be_imported(launcher: dict[str, Any]) -> None:
    assert _get_node_provider_cls(launcher["provider"]) is GCPNodeProvider


def test_every_request_has_only_what_googles_documents_know(launcher: dict[str, Any]) -> None:
    schemas = {GCPNodeType.COMPUTE: ("compute.v1.json", "Instance"), GCPNodeType.TPU: ("tpu.v2.json", "Node")}
    for name, entry in launcher["available_node_types"].items():
        file, schema = schemas[get_node_type(entry["node_config"])]
        found = document(file)["schemas"]
        assert unknown(entry["node_config"], {"$ref": schema}, found, name) == []
    assert unknown(
        {"diskz": 1, "scheduling": {"provisioningModel": "CHEAP"}}, {"$ref": "Instance"}, document("compute.v1.json")["schemas"], "x"
    ) == [
        "x.diskz",
        "x.scheduling.provisioningModel='CHEAP'",
    ]


def test_boot_disks_are_of_a_type_and_zone_that_the_machines_take(launcher: dict[str, Any]) -> None:
    zone = launcher["provider"]["availability_zone"]
    for entry in launcher["available_node_types"].values():
        for disk in entry["node_config"].get("disks", []):
            assert disk["initializeParams"]["diskType"] == f"zones/{zone}/diskTypes/pd-balanced"


def test_parts_of_a_machine_with_h100s_are_asked_for_as_they_are_sold(launcher: dict[str, Any]) -> None:
    for entry in launcher["available_node_types"].values():
        if entry["node_config"].get("machineType", "") in {"a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g"}:
            assert entry["node_config"]["scheduling"]["provisioningModel"] in {"SPOT", "FLEX_START"}


@pytest.mark.parametrize(("head", "internal"), [(True, False), (False, True)])
def test_the_head_is_reached_from_outside_and_the_workers_from_inside(launcher: dict[str, Any], head: bool, internal: bool) -> None:
    asked: list[bool] = []

    def runner(*arguments: Any) -> SimpleNamespace:
        asked.append(arguments[5])
        return SimpleNamespace()

    NodeUpdater(
        node_id="ray-crossmesh-head-0-compute",
        provider_config=launcher["provider"],
        provider=SimpleNamespace(get_command_runner=runner),
        auth_config={},
        cluster_name="crossmesh",
        file_mounts={},
        initialization_commands=[],
        setup_commands=[],
        ray_start_commands=[],
        runtime_hash="",
        file_mounts_contents_hash="",
        is_head_node=head,
    )
    assert asked == [internal]


def test_what_git_ignores_is_not_copied_to_the_head(launcher: dict[str, Any], checkout: Path) -> None:
    assert launcher["rsync_filter"] == [".gitignore"]
    large = [".venv/", ".compiler/", ".harness/", "outputs/"]
    asked = subprocess.run(["git", "check-ignore", *large], cwd=checkout, capture_output=True, text=True, check=False)
    assert asked.stdout.split() == large
    tracked = subprocess.run(["git", "ls-files", "-ci", "--exclude-standard"], cwd=checkout, capture_output=True, text=True, check=True)
    assert tracked.stdout == ""  # Nothing of the project stays behind.
