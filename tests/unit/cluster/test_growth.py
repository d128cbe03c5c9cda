"""What a cluster that will never have a node says, and what its user is told."""

import json

import pytest
from ray.core.generated.autoscaler_pb2 import (
    AutoscalingState,
    ClusterResourceState,
    GangResourceRequest,
    GetClusterStatusReply,
    NodeState,
    NodeStatus,
    PendingInstanceRequest,
    ResourceRequest,
)

from crossmesh.cluster import growth
from crossmesh.cluster.growth import ClusterView, Growth, NodeView, view_of
from crossmesh.cluster.nodes import hosts_of
from crossmesh.errors import InputError
from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.devices import Cpu, Gpu, Tpu

H100 = NodeView({"GPU": 2, "accelerator_type:H100": 1})
V5P_8 = NodeView({"TPU": 4, "accelerator_type:TPU-V5P": 1}, {"ray.io/tpu-pod-type": "v5p-8"})


def rented(name: str) -> Gpu | Tpu:
    device = find_slice(name).device
    assert not isinstance(device, Cpu)
    return device


def reply(name: str, *, version: int = 1, starting: bool = False, up: NodeView | None = None) -> GetClusterStatusReply:
    """Of an autoscaler that cannot place what is asked for `name`."""
    gang = GangResourceRequest(requests=[ResourceRequest(resources_bundle=dict(one)) for one in hosts_of(rented(name), 1).bundles])
    nodes = [NodeState(total_resources=dict(up.resources), labels=dict(up.labels), status=NodeStatus.IDLE)] if up else []
    return GetClusterStatusReply(
        autoscaling_state=AutoscalingState(
            autoscaler_state_version=version,
            infeasible_gang_resource_requests=[gang] if version else [],
            pending_instance_requests=[PendingInstanceRequest(ray_node_type_name="x", count=1)] if starting else [],
        ),
        cluster_resource_state=ClusterResourceState(node_states=nodes),
    )


def report(**types: str) -> str:
    return json.dumps({"autoscaler_report": {"node_type_mapping": types}})


@pytest.mark.parametrize(
    ("name", "up", "starting", "never"),
    [
        ("tpu_v6e_8", None, False, True),
        ("tpu_v6e_8", None, True, False),
        ("tpu_v5p_16", V5P_8, False, False),  # When the v5p-8 goes, `max_workers` may allow for it.
        ("tpu_v5p_8", V5P_8, False, False),  # Busy, not missing.
        ("gpu_8xh100", H100, False, False),
        ("gpu_8xh100", None, False, True),
        ("gpu_2xh100", H100, False, False),
    ],
)
def test_what_the_autoscaler_cannot_place_and_no_node_is_never_there(name: str, up: NodeView | None, starting: bool, never: bool) -> None:
    device = rented(name)
    chips = device.count if isinstance(device, Gpu) else 1
    assert view_of(reply(name, starting=starting, up=up), None).never_has(device, chips) is never
    assert not view_of(reply("gpu_1xl4"), None).never_has(rented("tpu_v6e_8"), 1)  # Another job's.
    assert not view_of(reply("gpu_8xh100"), None).never_has(rented("gpu_2xh100"), 2)


@pytest.mark.parametrize(
    ("said", "fixed"),
    [(report(abc="node_abc"), True), (report(**{"10.0.0.2": "tpu_v5p_8"}), False), (report(), False), (None, False), ("{}", False)],
)
def test_a_cluster_without_an_autoscaler_is_told_by_the_names_of_its_node_types(said: str | None, fixed: bool) -> None:
    seen = view_of(reply("tpu_v6e_8", version=0), said)
    assert seen.never_has(rented("tpu_v6e_8"), 1) is fixed


def test_the_user_hears_of_it_once_it_has_stood_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((100.0, 110.0, 129.0, 140.0, 150.0, 179.0, 185.0))
    seen = ClusterView((H100, V5P_8), fixed=True)
    monkeypatch.setattr(growth.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(growth, "read_view", lambda: seen)
    watch = Growth(rented("tpu_v6e_8"))
    for _ in range(3):
        watch.check()
    seen = ClusterView((H100,), starting=True)
    watch.check()
    seen = ClusterView((H100, V5P_8), fixed=True)
    for _ in range(2):
        watch.check()
    with pytest.raises(InputError, match=r"cannot provide a v6e-8 slice of 1 host.*with accelerators: 2 x H100, v5p-8.*raycluster\.yml"):
        watch.check()
