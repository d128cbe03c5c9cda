"""Workers by device and backend, and that Ray accepts what they ask for."""

import pytest
from ray.train import ScalingConfig

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import BatchSpec, HardwareSpec, MeshSpec
from crossmesh.hardware.catalogue import find_slice, slices
from crossmesh.hardware.devices import Cpu
from crossmesh.train.scaling import Scaling, scaling, workers_of


def test_a_cpu_is_one_worker() -> None:
    assert scaling(ExperimentSpec()) == Scaling(1, placement_strategy="STRICT_PACK", resources_per_worker={"CPU": 1})


def test_ranks_of_torch_share_the_cpu_that_one_worker_of_jax_has_for_itself() -> None:
    torch = workers_of(Cpu(count=3), "torch", 1)
    assert (torch.num_workers, torch.devices_per_worker) == (3, 1)
    assert 0.999 < 3 * torch.resources_per_worker["CPU"] <= 1
    jax = workers_of(Cpu(count=4), "jax", 2)
    assert (jax.num_workers, jax.devices_per_worker, jax.resources_per_worker) == (1, 8, {"CPU": 1})


def test_each_gpu_is_a_worker_of_torch_and_each_node_one_of_jax() -> None:
    device = find_slice("gpu_2xh100").device
    torch, jax = workers_of(device, "torch", 1), workers_of(device, "jax", 1)
    assert (torch.num_workers, torch.resources_per_worker, torch.accelerator_type) == (2, {"GPU": 1}, "H100")
    assert torch.placement_strategy == "STRICT_PACK"  # They speak over NVLink: one node.
    assert (jax.num_workers, jax.devices_per_worker, jax.resources_per_worker) == (1, 2, {"GPU": 2})
    several = workers_of(device, "torch", 3)
    assert (several.num_workers, several.placement_strategy) == (6, "PACK")


def test_each_tpu_host_is_a_worker_that_takes_its_chips() -> None:
    several = workers_of(find_slice("tpu_v6e_16").device, "jax", 2)
    assert (several.num_workers, several.devices_per_worker, several.resources_per_worker) == (8, 4, {"TPU": 4})
    assert (several.topology, several.accelerator_type) == ("4x4", "TPU-V6E")


def test_a_slice_of_one_host_does_not_take_a_host_of_a_larger_one() -> None:
    single = workers_of(find_slice("tpu_v5p_8").device, "jax", 1)
    assert (single.num_workers, single.resources_per_worker) == (1, {"TPU": 4, "TPU-v5p-8-head": 1})


@pytest.mark.parametrize("name", sorted(slices()))
@pytest.mark.parametrize("copies", [1, 2])
def test_ray_accepts_what_any_hardware_asks_for_and_all_its_devices_are_used(name: str, copies: int) -> None:
    spec = ExperimentSpec(hardware=HardwareSpec(name), mesh=MeshSpec(dcn=copies), batch=BatchSpec(64))
    workers = scaling(spec)
    config = ScalingConfig(**workers.ray_arguments)  # Raises where topology, chips and workers do not go together.
    assert config.num_workers * workers.devices_per_worker == spec.mesh_shape.devices == find_slice(name).device.chip_count() * copies
