"""What crossmesh asks of Ray makes Ray's own autoscaler launch the nodes of the run's hardware, from zero, and no other."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from crossmesh.cluster import hosts_of, task_options
from crossmesh.environments import environment
from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.devices import Device, Tpu
from crossmesh.train.scaling import workers_of
from rays_scheduler import Gang, InfeasibleError, kuberay_config, launched, replicas

ON_GCP = ("tpu_v5p_8", "tpu_v6e_8", "gpu_2xh100")
ON_KUBERNETES = (*ON_GCP, "tpu_v5p_16", "tpu_v6e_16")


@pytest.fixture(scope="module")
def launcher(checkout: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((checkout / "cluster.yaml").read_text()))


@pytest.fixture(scope="module")
def kubernetes(checkout: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((checkout / "conf" / "cluster" / "raycluster.yml").read_text()))


def backends(device: Device) -> tuple[str, ...]:
    return ("jax",) if isinstance(device, Tpu) else ("torch", "jax")


def helper(device: Device, backend: str, slices: int = 1) -> Gang:
    """What a run asks for first: the task that drives it, and for TPUs the hosts of its slices."""
    if isinstance(device, Tpu):
        hosts = hosts_of(device, slices)
        return Gang(hosts.bundles, hosts.labels, hosts.strategy)
    with task_options(environment(f"train/{backend}", device), device) as options:
        return Gang([options["resources"]])


def workers(device: Device, backend: str) -> Gang:
    """Ray Train's workers; Ray adds the chip of a GPU worker to what it asks for."""
    needed = workers_of(device, backend, 1)
    chip = {device.node_resource: 0.001} if needed.use_gpu and device.node_resource else {}
    return Gang([needed.resources_per_worker | chip] * needed.num_workers, {}, needed.placement_strategy)


@pytest.mark.parametrize("name", ON_GCP)
def test_the_launcher_adds_one_node_of_the_runs_kind(name: str, launcher: dict[str, Any]) -> None:
    device = find_slice(name).device
    for backend in backends(device):
        assert launched(launcher, helper(device, backend)) == {name: 1}
        assert launched(launcher, helper(device, backend), workers(device, backend)) == {name: 1}


@pytest.mark.parametrize("name", ON_KUBERNETES)
def test_kuberay_adds_one_replica_of_the_runs_kind(name: str, kubernetes: dict[str, Any]) -> None:
    device = find_slice(name).device
    for backend in backends(device):
        nodes = launched(kuberay_config(kubernetes), helper(device, backend))
        assert nodes == {name.replace("_", "-"): device.hosts if isinstance(device, Tpu) else 1}
        assert replicas(kubernetes, nodes) == {name.replace("_", "-"): 1}


def test_two_slices_are_two_replicas(kubernetes: dict[str, Any]) -> None:
    two = yaml.safe_load(yaml.safe_dump(kubernetes))
    for group in two["spec"]["workerGroupSpecs"]:
        group["maxReplicas"] = 2
    device = find_slice("tpu_v6e_16").device
    nodes = launched(kuberay_config(two), helper(device, "jax", 2))
    assert nodes == {"tpu-v6e-16": 8}
    assert replicas(two, nodes) == {"tpu-v6e-16": 2}


@pytest.mark.parametrize("name", ["tpu_v5p_16", "tpu_v6e_16"])
def test_rays_own_reservation_alone_brings_up_no_slice_of_several_hosts(name: str, kubernetes: dict[str, Any]) -> None:
    """Why all hosts are asked for: when this fails, Ray has learnt to, and `hosts_of` may go."""
    device = find_slice(name).device
    assert isinstance(device, Tpu)
    assert replicas(kubernetes, launched(kuberay_config(kubernetes), Gang([{device.head_resource: 1}]))) == {}
    config, first = kuberay_config(kubernetes), device.host_labels | {"ray.io/tpu-worker-id": "0"}
    with pytest.raises(InfeasibleError):  # The label of the first host is on no host that is not there yet.
        launched(config, Gang([{device.head_resource: 1}], first))
