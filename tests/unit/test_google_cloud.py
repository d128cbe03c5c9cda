"""Ray's own provider and updater read cluster.yaml as meant; `tests/integration/test_gcp_provider.py` sends what it asks for."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.autoscaler._private.gcp.node_provider import GCPNodeProvider
from ray.autoscaler._private.providers import _get_node_provider_cls
from ray.autoscaler._private.updater import NodeUpdater


def test_the_provider_of_the_file_can_be_imported(launcher: dict[str, Any]) -> None:
    assert _get_node_provider_cls(launcher["provider"]) is GCPNodeProvider


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
