from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.devices import Cpu, Tpu
from crossmesh.train.scaling import Scaling, scaling


def test_a_cpu_is_one_worker_and_leaves_cores_for_ray() -> None:
    assert scaling(Cpu()) == Scaling(1, resources_per_worker={"CPU": 1})


def test_each_gpu_is_a_worker() -> None:
    made = scaling(find_slice("gpu_2xh100").device)
    assert (made.num_workers, made.use_gpu, made.accelerator_type) == (2, True, "H100")


def test_each_tpu_host_is_a_worker_that_takes_its_chips() -> None:
    single = scaling(find_slice("tpu_v5p_8").device)
    assert single == Scaling(1, use_tpu=True, topology="2x2x1", accelerator_type="TPU-V5P", resources_per_worker={"TPU": 4})
    several = scaling(Tpu("v5p", "2x2x4", "v5p-32", 4))
    assert (several.num_workers, several.resources_per_worker) == (4, {"TPU": 4})
