"""What crossmesh asks of Ray makes Ray's own autoscaler launch the nodes of the run's hardware, from zero, and no other.

Every slice of the catalogue, every kind of job, both cluster files: a job asks in steps, and each step meets what the one before started.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from crossmesh.cluster.calls import task_options
from crossmesh.cluster.nodes import hosts_of
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.serving import ServeSpec
from crossmesh.config.training import BatchSpec, HardwareSpec
from crossmesh.environments import environment
from crossmesh.hardware.catalogue import find_slice, slices
from crossmesh.hardware.devices import Cpu, Device, Gpu, Tpu
from crossmesh.serve.adapters import ServedBase
from crossmesh.serve.vllm.settings import engine_settings
from crossmesh.train.scaling import workers_of
from rays_scheduler import Gang, InfeasibleError, kuberay_config, launched, replicas

ON_GCP = ("tpu_v5p_8", "tpu_v6e_8", "gpu_2xh100")
ON_KUBERNETES = (*ON_GCP, "tpu_v5p_16", "tpu_v6e_16")
RENTED = tuple(name for name, one in slices().items() if not isinstance(one.device, Cpu))
FILES = {"cluster.yaml": ON_GCP, "raycluster.yml": ON_KUBERNETES}
TRAINING = ("finetune", "sweep", "tune", "repeat")
"""Jobs that fetch the base and train."""
SERVING = ("serve", "benchmark", "evaluate")
JOBS = (*TRAINING, *SERVING, "pipeline", "export", "verify")
LIKE_LARGER = {"gpu_1xh100": "gpu_2xh100"}
"""Fewer GPUs of a kind that is declared: they are a part of its node."""


def backends(device: Device) -> tuple[str, ...]:
    return ("jax",) if isinstance(device, Tpu) else ("torch", "jax")


def hosts(device: Gpu | Tpu, slices: int = 1) -> Gang:
    """What a run asks for first: the hosts of its slice, or a node with all its GPUs."""
    asked = hosts_of(device, slices)
    return Gang(asked.bundles, asked.labels, asked.strategy)


def helper(device: Device, backend: str) -> Gang:
    """The task that fetches, or drives the run, on a GPU node; on a TPU slice it is within its hosts."""
    if isinstance(device, Tpu):
        return hosts(device)
    with task_options(environment(f"train/{backend}", device), device) as options:
        return Gang([options["resources"]])


def workers(device: Gpu | Tpu, backend: str) -> Gang:
    """Ray Train's workers; Ray adds the chip of a GPU worker to what it asks for, and takes all TPU hosts of one slice."""
    needed = workers_of(device, backend, 1)
    chip = {device.node_resource: 0.001} if needed.use_gpu else {}
    labels = {"ray.io/tpu-slice-name": ""} if isinstance(device, Tpu) else {}
    return Gang([needed.resources_per_worker | chip] * needed.num_workers, labels, needed.placement_strategy)


def engine(name: str, base: Path, device: Gpu | Tpu) -> Gang:
    """A server on the whole hardware: on GPUs its bundles, on TPUs the replica, which then reserves the hosts that are there."""
    serve = ServeSpec(tp=device.chip_count())
    settings = engine_settings(
        ExperimentSpec(hardware=HardwareSpec(name), batch=BatchSpec(16, 1), serve=serve), ServedBase("base", base, "d1gest", base)
    )
    options = settings.deployment
    if isinstance(device, Gpu):
        return Gang(options["placement_group_bundles"], {}, options["placement_group_strategy"])
    actor = options["ray_actor_options"]
    return Gang([actor["resources"] | {"CPU": actor["num_cpus"]}], actor["label_selector"])


def steps(job: str, name: str, backend: str, base: Path) -> Iterator[tuple[str, list[Gang]]]:
    """What a job asks for, in order: all of a step at once, and nothing of the one before but a slice's hosts."""
    device = find_slice(name).device
    assert not isinstance(device, Cpu)
    yield "fetch", [hosts(device)]
    yield "fetch", [helper(device, backend)]
    if job in (*TRAINING, "pipeline", "verify"):
        yield "train", [helper(device, backend), workers(device, backend)]
    if job in (*SERVING, "pipeline"):
        yield "serve", [*([hosts(device)] if isinstance(device, Tpu) else []), engine(name, base, device)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def configs(launcher: dict[str, Any], kubernetes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Both files as the autoscaler reads them, and a cluster that declares every slice there is."""
    return {"cluster.yaml": launcher, "raycluster.yml": kuberay_config(kubernetes), "all": every_slice()}


def every_slice() -> dict[str, Any]:
    types: dict[str, Any] = {"head": {"resources": {"CPU": 8}, "node_config": {}, "min_workers": 0, "max_workers": 0}}
    for name in RENTED:
        device = find_slice(name).device
        assert not isinstance(device, Cpu)
        one: dict[str, Any] = {"node_config": {}, "min_workers": 0, "max_workers": 1}
        if isinstance(device, Gpu):
            types[name] = one | {"resources": {"CPU": 208, "GPU": device.count, device.node_resource: 1}}
        else:
            chips = {"CPU": 208, "TPU": device.chips_per_host, device.head_resource: 1, device.node_resource: 1}
            types[name] = one | {"resources": chips, "labels": device.host_labels, "max_workers": device.hosts}
    return {"cluster_name": "all", "max_workers": 100, "provider": {"type": "gcp"}, "head_node_type": "head", "available_node_types": types}


def assert_it_starts_its_slice_alone(config: dict[str, Any], kind: str, job: str, name: str, backend: str, base: Path) -> None:
    device = find_slice(name).device
    nodes = device.hosts if isinstance(device, Tpu) else 1
    up: list[str] = []
    for step, gangs in steps(job, name, backend, base):
        asked = [labelled(gang, kind) for gang in gangs]
        assert launched(config, *asked, up=up) == ({} if up else {kind: nodes}), step
        up = [kind] * nodes


def labelled(gang: Gang, kind: str) -> Gang:
    """Ray Train knows the slice's name by then."""
    return Gang(gang.bundles, {label: value or kind for label, value in gang.labels.items()}, gang.strategy)


def cases(names: dict[str, tuple[str, ...]]) -> list[Any]:
    return [
        pytest.param(file, job, name, backend, id=f"{file}-{job}-{name}-{backend}")
        for file, those in names.items()
        for job in JOBS
        for name in those
        for backend in backends(find_slice(name).device)
    ]


@pytest.mark.parametrize(("file", "job", "name", "backend"), cases(FILES))
def test_every_job_starts_its_slice_and_no_other(file: str, job: str, name: str, backend: str, configs: dict[str, Any], base: Path) -> None:
    kind = name if file == "cluster.yaml" else name.replace("_", "-")
    assert_it_starts_its_slice_alone(configs[file], kind, job, name, backend, base)


@pytest.mark.parametrize("job", ["finetune", "serve", "export"])
@pytest.mark.parametrize("name", [name for name in RENTED if name != "gpu_8xa100_80"])
def test_where_every_slice_is_declared_each_job_starts_its_own(name: str, job: str, configs: dict[str, Any], base: Path) -> None:
    config = configs["all"]
    if (name, job) == ("tpu_v7x_8", "serve"):
        pytest.skip("v7x is not served: serve/vllm/options.py refuses it")
    if name == "gpu_8xa100_40":  # Ray calls both A100s one name: a cluster declares one of them.
        types = {key: one for key, one in config["available_node_types"].items() if key != "gpu_8xa100_80"}
        config = {**config, "available_node_types": types}
    for backend in backends(find_slice(name).device):
        assert_it_starts_its_slice_alone(config, name, job, name, backend, base)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", RENTED)
def test_a_slice_that_a_file_does_not_declare_starts_nothing(name: str, file: str, configs: dict[str, Any]) -> None:
    """Ray reports the request as infeasible, which `growth.py` tells the user of; test_growth.py has the message."""
    device = find_slice(name).device
    assert not isinstance(device, Cpu)
    if name in FILES[file]:
        return
    if name in LIKE_LARGER:
        (kind,) = launched(configs[file], hosts(device))
        assert kind.replace("-", "_") == LIKE_LARGER[name]
        return
    with pytest.raises(InfeasibleError):
        launched(configs[file], hosts(device))


@pytest.mark.parametrize("name", ON_KUBERNETES)
def test_kuberay_adds_one_replica_of_the_runs_kind(name: str, kubernetes: dict[str, Any]) -> None:
    device = find_slice(name).device
    assert not isinstance(device, Cpu)
    nodes = launched(kuberay_config(kubernetes), hosts(device))
    assert replicas(kubernetes, nodes) == {name.replace("_", "-"): 1}


def test_kuberay_runs_the_autoscaler_that_knows_labels(kubernetes: dict[str, Any]) -> None:
    """Ray's first autoscaler leaves labels out of its reading: any v5p host would do for a v5p-8."""
    assert kubernetes["spec"]["autoscalerOptions"]["version"] == "v2"


def _two_slices(kubernetes: dict[str, Any]) -> dict[str, Any]:
    two: dict[str, Any] = yaml.safe_load(yaml.safe_dump(kubernetes))
    for group in two["spec"]["workerGroupSpecs"]:
        group["maxReplicas"] = 2
    return two


@pytest.mark.parametrize("name", ON_KUBERNETES)
def test_two_slices_are_two_replicas(name: str, kubernetes: dict[str, Any]) -> None:
    two, device = _two_slices(kubernetes), find_slice(name).device
    assert not isinstance(device, Cpu)
    nodes = launched(kuberay_config(two), hosts(device, 2))
    assert replicas(two, nodes) == {name.replace("_", "-"): 2}


@pytest.mark.parametrize("make", [lambda config: config, _two_slices])
def test_more_slices_than_declared_start_nothing(make: Callable[[dict[str, Any]], dict[str, Any]], kubernetes: dict[str, Any]) -> None:
    given, device = make(kubernetes), find_slice("tpu_v6e_16").device
    assert isinstance(device, Tpu)
    with pytest.raises(InfeasibleError):
        launched(kuberay_config(given), hosts(device, 3))


@pytest.mark.parametrize("name", ["tpu_v5p_16", "tpu_v6e_16"])
def test_rays_own_reservation_alone_brings_up_no_slice_of_several_hosts(name: str, kubernetes: dict[str, Any]) -> None:
    """Why all hosts are asked for: when this fails, Ray has learnt to, and `hosts_of` may go."""
    device = find_slice(name).device
    assert isinstance(device, Tpu)
    assert replicas(kubernetes, launched(kuberay_config(kubernetes), Gang([{device.head_resource: 1}]))) == {}
    config, first = kuberay_config(kubernetes), device.host_labels | {"ray.io/tpu-worker-id": "0"}
    with pytest.raises(InfeasibleError):  # The label of the first host is on no host that is not there yet.
        launched(config, Gang([{device.head_resource: 1}], first))


def test_a_helper_alone_would_start_any_node_with_the_chip(configs: dict[str, Any]) -> None:
    """Why a GPU node is asked for with all its GPUs: when this fails, the helper's own request is enough."""
    device = find_slice("gpu_8xh100").device
    assert launched(configs["all"], helper(device, "torch")) != {"gpu_8xh100": 1}
