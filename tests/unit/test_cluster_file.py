"""cluster.yaml and raycluster.yml are what Ray's own loaders accept, and their nodes have what training asks for."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray._private.accelerators import TPUAcceleratorManager
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.autoscaler._private.util import prepare_config, validate_config

from crossmesh.config.job import JobKeys
from crossmesh.config.schema import known_keys
from crossmesh.environments import VARIABLES
from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.devices import Gpu, Tpu
from crossmesh.train.scaling import workers_of

ON_GCP = ("tpu_v5p_8", "tpu_v6e_8", "gpu_2xh100")
ON_KUBERNETES = (*ON_GCP, "tpu_v5p_16", "tpu_v6e_16")


@pytest.fixture(scope="module")
def kubernetes_types(kubernetes: dict[str, Any]) -> dict[str, Any]:
    """Node types as Ray's autoscaler reads them from the RayCluster, which also validates them."""
    loaded = _derive_autoscaling_config_from_ray_cr({**kubernetes, "metadata": {**kubernetes["metadata"], "namespace": "default"}})
    return {name.replace("-", "_"): entry for name, entry in loaded["available_node_types"].items()}


def test_rays_own_schema_and_loader_accept_it(launcher: dict[str, Any]) -> None:
    loaded = prepare_config(launcher)
    validate_config(loaded)
    for name, entry in loaded["available_node_types"].items():
        # What Ray's GCP provider tells TPUs and machines apart by.
        assert ("machineType" in entry["node_config"]) != ("acceleratorType" in entry["node_config"]), name
        if "acceleratorType" in entry["node_config"]:
            assert TPUAcceleratorManager.is_valid_tpu_accelerator_type(entry["node_config"]["acceleratorType"])


def test_nodes_run_the_commands_of_the_file_and_none_of_rays_defaults(launcher: dict[str, Any], checkout: Path) -> None:
    """Ray's defaults for GCP would call `pip` on the head, which Ubuntu's images do not have, or refuse to use outside an environment."""
    loaded = prepare_config(launcher)
    assert loaded["head_setup_commands"] == launcher["setup_commands"]
    assert loaded["initialization_commands"] == launcher["initialization_commands"]
    for name, entry in launcher["available_node_types"].items():
        if name != launcher["head_node_type"]:
            assert loaded["available_node_types"][name]["worker_setup_commands"] == entry["worker_setup_commands"]
    assert re.search("^google-api-python-client==", (checkout / "requirements" / "head.txt").read_text(), re.MULTILINE)


def assert_it_has_what_training_asks_for(name: str, resources: dict[str, int]) -> None:
    device = find_slice(name).device
    for backend in ("jax",) if isinstance(device, Tpu) else ("torch", "jax"):
        workers = workers_of(device, backend, 1)
        per_node = workers.num_workers // (device.hosts if isinstance(device, Tpu) else 1)
        for resource, amount in workers.resources_per_worker.items():
            assert resources[resource] >= amount * per_node
        assert resources[device.node_resource] == 1
    match device:
        case Tpu():  # Which Ray Train asks for to have a slice of several hosts to itself.
            assert resources[device.head_resource] == 1
            assert resources["TPU"] == device.chips_per_host
        case Gpu():
            assert resources["GPU"] == device.chip_count()


def test_node_types_of_the_launcher_have_what_training_asks_for(launcher: dict[str, Any]) -> None:
    types = launcher["available_node_types"]
    assert set(types) == {"head", *ON_GCP}
    for name in ON_GCP:
        assert_it_has_what_training_asks_for(name, types[name]["resources"])
        device = find_slice(name).device
        if isinstance(device, Tpu):
            assert types[name]["node_config"]["acceleratorType"] == device.accelerator_type


def test_node_groups_of_kubernetes_have_what_training_asks_for(kubernetes: dict[str, Any], kubernetes_types: dict[str, Any]) -> None:
    assert set(kubernetes_types) == {"headgroup", *ON_KUBERNETES}
    groups = {group["groupName"].replace("-", "_"): group for group in kubernetes["spec"]["workerGroupSpecs"]}
    for name in ON_KUBERNETES:
        assert_it_has_what_training_asks_for(name, kubernetes_types[name]["resources"])
        device = find_slice(name).device
        if isinstance(device, Tpu):
            selector = groups[name]["template"]["spec"]["nodeSelector"]
            assert selector["cloud.google.com/gke-tpu-topology"] == device.topology
            assert groups[name].get("numOfHosts", 1) == device.hosts == kubernetes_types[name]["max_workers"]


def test_accelerators_start_from_zero(launcher: dict[str, Any], kubernetes: dict[str, Any]) -> None:
    for name in ON_GCP:
        assert launcher["available_node_types"][name]["min_workers"] == 0
    assert kubernetes["spec"]["enableInTreeAutoscaling"]
    for group in kubernetes["spec"]["workerGroupSpecs"]:
        assert group["replicas"] == group["minReplicas"] == 0 < group["maxReplicas"]


def test_every_node_runs_one_python_minor_version_and_one_ray(checkout: Path, launcher: dict[str, Any], kubernetes: dict[str, Any]) -> None:
    """The launcher's nodes have one script that installs, with one version in it; Kubernetes' have one base image, with the same."""
    script = (checkout / "requirements" / "install-node.sh").read_text()
    assert re.findall(r"^    local python=(\S+)$", script, re.MULTILINE) == ["3.12"]
    commands = [
        launcher["setup_commands"],
        *(entry.get("worker_setup_commands", []) for entry in launcher["available_node_types"].values()),
    ]
    assert sum("install-node.sh" in command for part in commands for command in part) == 1 + len(ON_GCP)
    assert not [command for part in commands for command in part if "uv venv" in command or "pip install" in command]
    base = re.findall(
        r"^FROM rayproject/ray:(\S+?)-py(\d)(\d+)-cpu AS base$", (checkout / "conf" / "cluster" / "Dockerfile").read_text(), re.MULTILINE
    )
    ray = re.findall(r"^ray==(\S+) ", (checkout / "requirements" / "head.txt").read_text(), re.MULTILINE)
    assert base == [(ray[0], "3", "12")]
    assert kubernetes["spec"]["rayVersion"] == ray[0]
    assert {image for image, _ in every_image(kubernetes)} == {"crossmesh"}
    locks = set(re.findall(r"--python-version (3\.\d+) -o requirements/(?:head|\$\$kind)\.txt", (checkout / "Makefile").read_text()))
    assert locks == {"3.12"}


def test_what_the_head_knows_outlives_the_process_that_has_it(launcher: dict[str, Any], kubernetes: dict[str, Any]) -> None:
    *_, keeper, start = launcher["head_start_ray_commands"]
    assert "RAY_gcs_storage=rocksdb RAY_gcs_storage_path=$HOME/" in start
    port = re.findall(r"ray start --head --port=(\d+)", start)
    assert re.findall(r"/head_keeper\.py (\d+) < /dev/null", keeper) == port
    kept = kubernetes["spec"]["gcsFaultToleranceOptions"]
    assert (kept["backend"], kept["storage"]["deletionPolicy"]) == ("rocksdb", "DeleteWithCluster")


def every_image(kubernetes: dict[str, Any]) -> list[tuple[str, str]]:
    groups = [kubernetes["spec"]["headGroupSpec"], *kubernetes["spec"]["workerGroupSpecs"]]
    parted = [container["image"].partition(":") for group in groups for container in group["template"]["spec"]["containers"]]
    return [(name, tag) for name, _, tag in parted]


def test_every_image_is_one_that_the_dockerfile_can_make(checkout: Path, kubernetes: dict[str, Any]) -> None:
    made = re.findall(r"^FROM base AS (\w+)$", (checkout / "conf" / "cluster" / "Dockerfile").read_text(), re.MULTILINE)
    assert {tag for _, tag in every_image(kubernetes)} == set(made)


def test_every_connection_needs_the_token_and_the_dashboard_stays_on_the_head(launcher: dict[str, Any], kubernetes: dict[str, Any]) -> None:
    for command in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert "RAY_AUTH_MODE=token" in launcher[command][-1]
    assert "--dashboard-host=127.0.0.1" in launcher["head_start_ray_commands"][-1]
    assert "RAY_JOB_STOP_WAIT_TIME_S=150" in launcher["head_start_ray_commands"][-1]
    assert launcher["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    assert launcher["provider"]["use_internal_ips"]
    head = kubernetes["spec"]["headGroupSpec"]
    assert (head["serviceType"], kubernetes["spec"]["authOptions"]["mode"], "enableIngress" in head) == ("ClusterIP", "token", False)
    environments = [kubernetes["spec"]["autoscalerOptions"]["env"]]
    environments += [group["template"]["spec"]["containers"][0]["env"] for group in (head, *kubernetes["spec"]["workerGroupSpecs"])]
    for variables in environments:
        named = {variable["name"]: variable for variable in variables}
        assert named["RAY_AUTH_MODE"]["value"] == "token"
        assert "secretKeyRef" in named["RAY_AUTH_TOKEN"]["valueFrom"]  # Never the token itself.
        assert set(named) <= {variable.name for variable in VARIABLES}


def test_workers_of_every_node_have_the_priority_of_ray_itself(launcher: dict[str, Any], kubernetes: dict[str, Any]) -> None:
    for command in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert "RAY_worker_niceness=0" in launcher[command][-1]
    groups = (kubernetes["spec"]["headGroupSpec"], *kubernetes["spec"]["workerGroupSpecs"])
    for group in groups:
        named = {one["name"]: one.get("value") for one in group["template"]["spec"]["containers"][0]["env"]}
        assert named["RAY_worker_niceness"] == "0"


def test_every_node_mounts_one_file_share_as_the_storage_root(checkout: Path, launcher: dict[str, Any], kubernetes: dict[str, Any]) -> None:
    """Node types have no commands of their own that would replace those of all, and drivers are told the folder that was mounted."""
    loaded = prepare_config(launcher)
    assert not [name for name, entry in loaded["available_node_types"].items() if "initialization_commands" in entry]
    commands = loaded["initialization_commands"]
    (share,) = re.findall(r'echo "(\S+):/\S+ (\S+) nfs4? (\S+) 0 0"', " ".join(commands))
    address, folder, options = share
    assert re.fullmatch(r"[\d.]+", address)
    assert not {"nolock", "soft"} & set(options.split(","))
    assert [command for command in commands if f"sudo mount {folder}" in command]
    assert f"CROSSMESH_STORAGE={folder}" in loaded["head_start_ray_commands"][-1]
    for command in commands:
        assert subprocess.run(["bash", "-n", "-c", command], check=False).returncode == 0

    claim = yaml.safe_load((checkout / "conf" / "cluster" / "storage.yml").read_text())
    assert (claim["kind"], claim["spec"]["accessModes"]) == ("PersistentVolumeClaim", ["ReadWriteMany"])
    for group in (kubernetes["spec"]["headGroupSpec"], *kubernetes["spec"]["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        (volume,) = pod["volumes"]
        (mount,) = pod["containers"][0]["volumeMounts"]
        named = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert (mount["name"], mount["mountPath"]) == (volume["name"], named["CROSSMESH_STORAGE"])
        assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"  # Else every start would open the key files to the group.


@pytest.mark.parametrize("name", ["cluster.yaml", "conf/cluster/raycluster.yml", "conf/cluster/storage.yml"])
def test_no_cluster_file_proposes_a_bucket_as_the_storage_root(checkout: Path, name: str) -> None:
    said = " ".join(line.lstrip("# ") for line in (checkout / name).read_text().splitlines() if line.startswith("#"))
    for sentence in re.split(r"(?<=[.;:]) ", said):
        assert not re.search(r"bucket|gcsfuse|FUSE", sentence) or re.search(r"cannot|may hold|gs://", sentence), sentence


@pytest.mark.parametrize("name", ["install-node.sh", "install-judge.sh"])
def test_the_install_scripts_are_bash(checkout: Path, name: str) -> None:
    script = checkout / "requirements" / name
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    assert script.stat().st_mode & 0o111


def test_the_folder_of_cluster_files_is_no_config_group(checkout: Path) -> None:
    assert "cluster" not in known_keys(JobKeys, checkout / "conf")
    assert "checkpoint" in known_keys(JobKeys, checkout / "conf")
    assert not list((checkout / "conf" / "cluster").glob("*.yaml"))  # Which Hydra would list.
