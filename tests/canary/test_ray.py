"""Private parts of Ray Core, Ray Train and Ray Serve."""

import inspect
import logging
import socket

import pytest
import ray
from ray import serve
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply
from ray.core.generated.gcs_pb2 import PlacementGroupTableData
from ray.util.placement_group import placement_group as reserve
from ray.util.placement_group import remove_placement_group

from crossmesh.compat import ray_core, ray_serve, ray_train
from crossmesh.compat.parts import part
from crossmesh.compat.ray_train import WorkerGroupFailure

pytestmark = pytest.mark.canary
SPACE = b"crossmesh-canary"


def test_newest_local_address(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1234")
    assert ray_core.newest_local_address() == "127.0.0.1:1234"


def test_visible_chips(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("TPU_VISIBLE_CHIPS", "")
    assert ray_core.visible_chips("GPU") == 0
    assert ray_core.visible_chips("TPU") == 0


def test_loopback_addresses_kept():
    resolve = part("ray", "ray._private.services", "resolve_ip_for_localhost")
    with ray_core.loopback_addresses_kept():
        assert resolve("127.0.0.1") == "127.0.0.1"


def test_loopback_arguments():
    source = inspect.getsource(ray.init)
    assert all(f'"{name}"' in source for name in ray_core.LOOPBACK_ARGUMENTS)


def test_is_slow_start(says):
    says("ray._private.node", "The current node timed out during startup")
    assert ray_core.is_slow_start(Exception("The current node timed out during startup. This could happen because ..."))
    assert not ray_core.is_slow_start(Exception("Unable to start"))


def test_logged_failures(says):
    says("ray.autoscaler.v2.instance_manager.node_provider", '"Failed to launch {} nodes of type {}: {}".format(count, node_type, e)')
    formatter = logging.Formatter(part("ray", "ray._private.ray_constants", "LOGGER_FORMAT"))
    said = "Failed to launch 2 nodes of type h100: no capacity"
    record = logging.LogRecord("ray", logging.ERROR, "node_provider.py", 492, said, None, None)
    (failure,) = ray_core.logged_failures(formatter.format(record))
    assert (failure.node_type, failure.error) == ("h100", "no capacity")
    assert abs(failure.at_s - record.created) < 2


def test_session_folder(running_ray):
    folder = ray_core.session_folder()
    assert folder is not None
    assert (folder / "logs" / "gcs_server.out").exists()


def test_cluster_status(running_ray, says):
    reply, report = ray_core.cluster_status(ray.get_runtime_context().gcs_address, 5.0)
    (node,) = GetClusterStatusReply.FromString(reply).cluster_resource_state.node_states
    assert dict(node.total_resources)["CPU"] >= 2
    assert report is None or b"load_metrics_report" in report  # The rest is there once the monitor has looked a second time.
    says("ray.autoscaler._private.monitor", '"autoscaler_report"')
    says("ray.autoscaler._private.autoscaler", "node_type_mapping")


def test_nodes(running_ray):
    (node,) = ray.nodes()
    assert ray_core.head_resource() in node["Resources"]
    assert ray_core.free_resources()[node["NodeID"]]["CPU"] >= 2
    assert ray_core.draining_nodes() == frozenset()


def test_placement_groups(running_ray):
    group = reserve([{"CPU": 1}])
    assert group.wait(30)
    found = ray_core.placement_group(group)
    assert found is not None
    assert PlacementGroupTableData.FromString(found).state == PlacementGroupTableData.CREATED
    assert [PlacementGroupTableData.FromString(one).placement_group_id for one in ray_core.placement_groups()] == [group.id.binary()]
    remove_placement_group(group)


def test_key_value_store(running_ray):
    assert ray_core.kv_put(SPACE, b"a:1", b"x")
    assert not ray_core.kv_put(SPACE, b"a:1", b"y", overwrite=False)
    assert ray_core.kv_put(SPACE, b"a:2", b"y", overwrite=False)
    assert ray_core.kv_get(SPACE, b"a:1") == b"x"
    assert sorted(ray_core.kv_list(SPACE, b"a:")) == [b"a:1", b"a:2"]
    ray_core.kv_delete(SPACE, b"a:1")
    ray_core.kv_delete(SPACE, b"a:1")
    assert ray_core.kv_get(SPACE, b"a:1") is None


@pytest.mark.parametrize("failure", WorkerGroupFailure)
def test_worker_group_failure(failure):
    kind = part("ray", "ray.train.v2._internal.exceptions", failure.value)
    assert issubclass(kind, Exception)
    assert failure.matches(kind.__new__(kind))
    assert not failure.matches(ValueError())


def test_health_check_cause():
    kind = part("ray", "ray.train.v2._internal.exceptions", WorkerGroupFailure.HEALTH_CHECK.value)
    why = ValueError("no answer")
    assert ray_train.health_check_cause(kind("failed", why)) is why
    assert ray_train.health_check_cause(why) is why


def test_has_preemption_notice():
    context = part("ray", "ray.train.v2._internal.execution.context", "TrainContext")
    assert "preemption_context" in inspect.signature(context).parameters
    assert "preemption_info" in vars(part("ray", "ray.train.v2._internal.execution.context", "PreemptionContext"))
    assert callable(part("ray", "ray.train.v2._internal.execution.context", "get_train_context"))


def test_start_coordinator(running_ray):
    ray_train.start_coordinator()
    names = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True)]
    assert any("AutoscalingCoordinator" in name for name in names), names


def test_set_version():
    deployment = serve.deployment(lambda: None, name="canary")
    ray_serve.set_version(deployment, "a version of ours")
    assert deployment.version == "a version of ours"


def test_controller(running_ray):
    with pytest.raises(ValueError, match="SERVE_CONTROLLER"):
        ray_serve.controller()


def test_ask_controller_to_stop():
    stop = part("ray", "ray.serve._private.controller", "ServeController", "graceful_shutdown")
    assert "wait" in inspect.signature(stop).parameters


def test_listen_alone(says, monkeypatch):
    says("ray.serve._private.http_util", "set_socket_reuse_port(sock)")
    module = part("ray", "ray.serve._private.http_util")
    monkeypatch.setattr(module, "set_socket_reuse_port", module.set_socket_reuse_port)  # Put back after the test.
    ray_serve.listen_alone()
    with socket.socket() as listener:
        module.set_socket_reuse_port(listener)
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        assert not listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)


def test_is_bind_failure(says):
    says("ray.serve._private.http_util", "Failed to bind to address")
    assert ray_serve.is_bind_failure(RuntimeError("Failed to bind to address '127.0.0.1:8000'."))
