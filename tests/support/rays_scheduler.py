"""What Ray's own autoscaler launches for a request, from zero nodes: its scheduler, and KubeRay's provider for whole slices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.autoscaler._private.kuberay.node_provider import IKubernetesHttpApiClient
from ray.autoscaler.v2.instance_manager.cloud_providers.kuberay.cloud_provider import KubeRayProvider
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.schema import AutoscalerInstance
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated.autoscaler_pb2 import GangResourceRequest, NodeState, NodeStatus
from ray.core.generated.common_pb2 import LabelSelectorOperator
from ray.core.generated.instance_manager_pb2 import Instance, NodeKind

_IN = LabelSelectorOperator.Value("LABEL_OPERATOR_IN")
_Constraint = ResourceRequestUtil.PlacementConstraintType
_CONSTRAINTS = {"STRICT_SPREAD": _Constraint.ANTI_AFFINITY, "STRICT_PACK": _Constraint.AFFINITY}


class InfeasibleError(Exception):
    """Ray's scheduler knows no node that could ever hold a gang."""


@dataclass(frozen=True)
class Gang:
    """A placement group (of one bundle for a task) as the autoscaler sees it."""

    bundles: Sequence[Mapping[str, float]]
    labels: Mapping[str, str] = field(default_factory=dict)
    strategy: str = "PACK"


def launched(config: Mapping[str, Any], *gangs: Gang, up: Sequence[str] = ()) -> dict[str, int]:
    """Nodes that Ray's scheduler launches of each type for `gangs` on a cluster that has idle nodes of the types `up`, from zero without.

    Raises `InfeasibleError` when a gang can never be placed.
    """
    loaded = AutoscalingConfig(dict(config), skip_content_hash=True)
    reply = ResourceDemandScheduler().schedule(
        SchedulingRequest(
            disable_launch_config_check=True,
            node_type_configs=loaded.get_node_type_configs(),
            max_num_nodes=loaded.get_max_num_nodes(),
            gang_resource_requests=[_request(index, gang) for index, gang in enumerate(gangs)],
            current_instances=[_running(config, kind, index) for index, kind in enumerate(up)],
        )
    )
    if reply.infeasible_gang_resource_requests:
        raise InfeasibleError(reply.infeasible_gang_resource_requests)
    return {one.instance_type: one.count for one in reply.to_launch}


def _running(config: Mapping[str, Any], kind: str, index: int) -> AutoscalerInstance:
    """A node of that type, with the labels that Ray itself gives the hosts of a slice: all of the type are of one."""
    entry = config["available_node_types"][kind]
    resources = {name: float(amount) for name, amount in entry["resources"].items()}
    labels = dict(entry.get("labels", {}))
    if "ray.io/tpu-pod-type" in labels:
        labels |= {"ray.io/tpu-slice-name": kind, "ray.io/tpu-worker-id": str(index)}
        if index:
            resources = {name: amount for name, amount in resources.items() if not name.endswith("-head")}
    identity = f"{kind}-{index}"
    return AutoscalerInstance(
        identity,
        NodeState(
            node_id=identity.encode(),
            ray_node_type_name=kind,
            available_resources=resources,
            total_resources=resources,
            labels=labels,
            status=NodeStatus.IDLE,
        ),
        Instance(instance_id=identity, instance_type=kind, status=Instance.RAY_RUNNING, node_id=identity, node_kind=NodeKind.WORKER),
    )


def _request(index: int, gang: Gang) -> GangResourceRequest:
    constraint = _CONSTRAINTS.get(gang.strategy)
    constraints = [(constraint, f"_PG_{index}", "")] if constraint else []
    selectors = [[(name, _IN, [value]) for name, value in gang.labels.items()]] if gang.labels else []
    return GangResourceRequest(requests=[ResourceRequestUtil.make(dict(one), constraints, selectors) for one in gang.bundles])


def kuberay_config(resource: Mapping[str, Any]) -> dict[str, Any]:
    """The autoscaler's configuration for a RayCluster."""
    made: dict[str, Any] = _derive_autoscaling_config_from_ray_cr(_named(resource))
    return made


class _KubernetesApi(IKubernetesHttpApiClient):
    """One RayCluster without pods, which takes patches."""

    def __init__(self, resource: Mapping[str, Any]) -> None:
        self._resource = resource
        self.patches: list[dict[str, Any]] = []

    def get(self, path: str) -> dict[str, Any]:
        return dict(self._resource) if path.startswith("rayclusters/") else {"items": [], "metadata": {"resourceVersion": "0"}}

    def patch(self, path: str, payload: Any, content_type: str = "application/json-patch+json") -> dict[str, Any]:
        self.patches += payload
        return {}

    def delete(self, path: str) -> dict[str, Any]:
        raise NotImplementedError(path)


def replicas(resource: Mapping[str, Any], nodes: Mapping[str, int]) -> dict[str, int]:
    """Replicas of each worker group that KubeRay's provider asks Kubernetes for when the autoscaler launches `nodes`."""
    named = _named(resource)
    api = _KubernetesApi(named)
    provider = KubeRayProvider(named["metadata"]["name"], {"namespace": named["metadata"]["namespace"]}, None, api)
    provider.launch(dict(nodes), "request")
    assert not provider.poll_errors()
    groups = [group["groupName"] for group in named["spec"]["workerGroupSpecs"]]
    return {groups[int(one["path"].split("/")[3])]: one["value"] for one in api.patches if one["path"].endswith("/replicas")}


def _named(resource: Mapping[str, Any]) -> dict[str, Any]:
    return {**resource, "metadata": {**resource["metadata"], "namespace": "default"}}
