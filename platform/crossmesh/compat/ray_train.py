"""Ray Train: notice of a preemption, the actor that counts resources, and which of its failures an error is."""

from enum import Enum
from typing import Any

from crossmesh.compat.parts import member, part

_EXCEPTIONS = "ray.train.v2._internal.exceptions"


class WorkerGroupFailure(Enum):
    """What kept a group of workers from starting, or one worker of it from going on."""

    RESOURCES = "InsufficientClusterResourcesError"
    """The cluster can never have what the workers ask for."""
    STARTUP = "WorkerGroupStartupFailedError"
    STARTUP_TIMEOUT = "WorkerGroupStartupTimeoutError"
    HEALTH_CHECK = "WorkerHealthCheckFailedError"
    HEALTH_CHECK_TIMEOUT = "WorkerHealthCheckTimeoutError"

    def matches(self, error: object) -> bool:
        """Whether `error` is of this kind."""
        return isinstance(error, part("ray", _EXCEPTIONS, self.value))


def health_check_cause(error: object) -> Any:
    """Return why the health check of a worker failed; `error` itself when it is another failure."""
    return member("ray", error, "health_check_failure") if WorkerGroupFailure.HEALTH_CHECK.matches(error) else error


def has_preemption_notice() -> bool:
    """Whether Ray has told this training worker that a node of the run is taken away.

    `ray.train.get_preemption_info` says the same and is a barrier over all workers, by way of an actor, at every call. What this worker was
    told is read where that function reads it.
    """
    context = part("ray", "ray.train.v2._internal.execution.context", "get_train_context")()
    return member("ray", member("ray", context, "preemption_context"), "preemption_info") is not None


def start_coordinator() -> None:
    """Start the actor with which Ray Train counts the cluster's resources, on the node of the caller, and wait until it runs."""
    import ray

    actor = part("ray", "ray.data._internal.cluster_autoscaler", "get_or_create_autoscaling_coordinator")()
    ray.get(member("ray", actor, "__ray_ready__").remote())
