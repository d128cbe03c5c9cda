"""On how many slices a run goes on: pure decisions, on nodes as Ray describes them."""

from dataclasses import asdict, replace

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import BatchSpec, HardwareSpec, MeshSpec, PackingSpec
from crossmesh.data.packing import plan_steps
from crossmesh.errors import InputError
from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.devices import Tpu
from crossmesh.hardware.hosts import whole_slices
from crossmesh.hardware.mesh import MeshShape
from crossmesh.train import nodes
from crossmesh.train.nodes import Node
from crossmesh.train.slices import broken, usable


def elastic(dcn: int, least: int, size: int = 16, micro: int = 0, mode: str = "none") -> ExperimentSpec:
    mesh, batch = MeshSpec(dcn=dcn, min_dcn=least), BatchSpec(size, micro)
    return ExperimentSpec(hardware=HardwareSpec("gpu_2xh100"), mesh=mesh, batch=batch, packing=PackingSpec(mode))


def gpu(name: str, gpus: int, free: int, kind: str = "H100") -> Node:
    own = {f"accelerator_type:{kind}": 1.0}
    return Node(name, {**own, "GPU": gpus}, {**own, "GPU": free}, {"ray.io/accelerator-type": kind}, answers=True)


def tpu(device: Tpu, slice_name: str, worker: int, *, busy: bool = False) -> Node:
    labels = {**device.host_labels, "ray.io/tpu-slice-name": slice_name, "ray.io/tpu-worker-id": str(worker)}
    chips = {"TPU": float(device.chips_per_host), device.node_resource: 1.0}
    return Node(f"{slice_name}{worker}", chips, {} if busy else chips, labels, answers=True)


@pytest.mark.parametrize(
    ("dcn", "least", "there", "found"),
    [
        (2, 1, 2, 2),
        (2, 1, 1, 1),
        (2, 1, 0, 0),
        (2, 1, 5, 2),  # Never more than asked for.
        (2, 0, 1, 0),  # Not elastic: all or nothing.
        (4, 2, 3, 2),  # Three do not divide a batch of 16.
        (4, 2, 1, 0),
    ],
)
def test_as_many_slices_as_are_there_and_divide_the_batch(dcn: int, least: int, there: int, found: int) -> None:
    assert usable(elastic(dcn, least), there) == found


@pytest.mark.parametrize(("size", "micro", "accumulation"), [(16, 0, 2), (16, 2, 4), (16, 4, 2), (32, 2, 8)])
def test_a_device_computes_as_much_at_once_and_the_rest_is_accumulated(size: int, micro: int, accumulation: int) -> None:
    spec = elastic(2, 1, size, micro)
    one = spec.on_slices(1)
    assert one.mesh_shape == MeshShape(data=1, fsdp=2, tp=1)
    assert (one.micro_batch, one.batch.size) == (spec.micro_batch, spec.batch.size)
    assert (one.accumulation, spec.accumulation) == (accumulation, accumulation // 2)
    assert spec.on_slices(2) is spec


@pytest.mark.parametrize("mode", ["none", "step", "stream"])
def test_the_rows_of_every_step_stay_the_same(mode: str) -> None:
    spec = elastic(2, 1, mode=mode)
    lengths = [20 + 7 * (row % 9) for row in range(100)]
    both, one = plan_steps(lengths, spec), plan_steps(lengths, spec.on_slices(1))
    assert [plan.rows for plan in both] == [plan.rows for plan in one]


def test_only_whole_free_slices_count() -> None:
    device = find_slice("gpu_2xh100").device
    seen = [gpu("a", 2, 2), gpu("b", 2, 1), gpu("c", 1, 1), gpu("d", 2, 2, "A100"), gpu("e", 8, 5)]
    assert whole_slices(device, seen, lambda node: node.free) == 1 + 0 + 0 + 0 + 2
    assert whole_slices(device, seen) == 1 + 1 + 0 + 0 + 4


def test_a_tpu_slice_counts_with_all_its_hosts_only_and_what_is_left_of_one_is_known() -> None:
    device = find_slice("tpu_v5p_16").device
    assert isinstance(device, Tpu)
    assert device.hosts == 2
    other = replace(device, accelerator_type="v6e-16")
    seen = [tpu(device, "a", 0), tpu(device, "a", 1), tpu(device, "b", 0), tpu(device, "c", 0), tpu(device, "c", 1, busy=True)]
    seen += [tpu(other, "d", 0), tpu(other, "d", 1)]
    assert whole_slices(device, seen, lambda node: node.free) == 1
    assert whole_slices(device, seen) == 2
    assert {name: [node.id for node in hosts] for name, hosts in broken(device, seen).items()} == {"b": ["b0"]}


def test_hosts_that_are_a_slice_each_count_each() -> None:
    device = find_slice("tpu_v5p_8").device
    assert isinstance(device, Tpu)
    assert whole_slices(device, [tpu(device, "a", 0), tpu(device, "b", 0)], lambda node: node.free) == 2
    assert broken(device, [tpu(device, "a", 0)]) == {}


@pytest.mark.parametrize("least", [-1, 3])
def test_fewer_slices_than_none_and_more_than_all_are_refused(least: int) -> None:
    with pytest.raises(InputError, match=rf"mesh\.min_dcn={least}.*1 to mesh\.dcn=2"):
        MeshSpec(dcn=2, min_dcn=least)


def test_a_spec_on_fewer_slices_differs_in_mesh_and_micro_batch_only() -> None:
    spec = elastic(2, 1)
    one = asdict(spec.on_slices(1))
    assert {key for key, value in asdict(spec).items() if one[key] != value} == {"mesh", "batch"}


def test_a_node_that_has_notice_is_not_counted_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [{"NodeID": name, "Alive": name != "dead", "Resources": {}, "Labels": {}} for name in ("stays", "goes", "dead")]
    monkeypatch.setattr(nodes.ray, "nodes", lambda: known)
    monkeypatch.setattr(nodes, "free_resources", lambda: {"stays": {"GPU": 1.0}})
    monkeypatch.setattr(nodes, "draining_nodes", lambda: frozenset({"goes"}))
    monkeypatch.setattr(nodes, "_answers", lambda _: True)
    assert [(node.id, node.free) for node in nodes.nodes()] == [("stays", {"GPU": 1.0})]
