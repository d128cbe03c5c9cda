"""The Ray Train run of one attempt: built and waited for in a task of the worker environment, so that the driver imports no framework.

`ray.train.torch` imports torch and `ray.train` pulls in much else, hence the imports inside the functions.
"""

import time
from collections.abc import Mapping
from typing import Any

from crossmesh.compat.ray_train import WorkerGroupFailure, health_check_cause
from crossmesh.errors import InputError
from crossmesh.files import write_json
from crossmesh.hardware.emulation import emulating
from crossmesh.train.retry import Failure, FailureKind
from crossmesh.train.scaling import Scaling, scaling
from crossmesh.train.train_job import TrainJob
from crossmesh.train.worker import LOOP_KEY, system_metrics, train_loop_per_worker


def fit(job: TrainJob) -> Failure | None:
    """Run the attempt under Ray Train and return when its workers have ended: what failed, or None.

    Raises `InputError` when the cluster can never have what the workers ask for.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.exceptions import TrainingFailedError

    workers = scaling(job.placed)
    trainer, framework = _trainer(job.spec.backend_name, workers)
    start = time.monotonic()
    try:
        trainer(
            train_loop_per_worker=run_worker,
            train_loop_config={LOOP_KEY: job},
            scaling_config=ScalingConfig(**workers.ray_arguments),
            # Ray's own bookkeeping of a run: one folder an attempt, because it refuses to start on a damaged one. Retrying is the driver's,
            # of every kind: Ray would start a group that cannot start again without end, and each try leaves a slice reserved.
            run_config=RunConfig(
                name="train",
                storage_path=str(job.attempt / "ray"),
                failure_config=FailureConfig(max_failures=0, controller_failure_limit=0, max_preemption_failures=0),
            ),
            **framework,
        ).fit()
    except TrainingFailedError as error:
        if WorkerGroupFailure.RESOURCES.matches(getattr(error, "controller_failure", None)):
            raise InputError(
                f"hardware.name={job.spec.hardware.name!r} asks for {workers.num_workers} workers with "
                f"{workers.resources_per_worker} each, more than the cluster can grow to. Choose other hardware, or add its node type "
                "to the cluster (cluster.yaml)."
            ) from error
        return Failure(_kind(error), str(error))
    write_json(job.fitted, {"seconds": time.monotonic() - start})
    return None


def run_worker(config: Mapping[str, TrainJob]) -> None:
    """Write down where this worker is, for the driver to look after its node, train, and write down how long that took."""
    import ray
    from ray.train import get_context

    context, here = get_context(), ray.get_runtime_context()
    accelerators = {kind: ids for kind, ids in here.get_accelerator_ids().items() if ids}
    place = {"node": here.get_node_id(), "world": context.get_world_size(), "accelerators": accelerators}
    file, start = config[LOOP_KEY].ranks / f"{context.get_world_rank()}.json", time.monotonic()
    write_json(file, place)
    with system_metrics(config[LOOP_KEY], context.get_node_rank(), context.get_local_rank()):
        train_loop_per_worker(config)
    write_json(file, {**place, "loop_s": time.monotonic() - start})


def _trainer(backend: str, workers: Scaling) -> tuple[Any, dict[str, Any]]:
    """The trainer class of a backend and how it sets its processes up."""
    if backend == "jax":
        from ray.train.v2.jax import JaxTrainer

        return JaxTrainer, {}
    from ray.train.torch import TorchConfig, TorchTrainer

    # gloo beside NCCL: checkpoints agree on what each rank writes in the memory of the host.
    collectives = "cpu:gloo,cuda:nccl" if workers.use_gpu and not emulating() else "gloo"
    return TorchTrainer, {"torch_config": TorchConfig(backend=collectives)}


def _kind(error: Exception) -> FailureKind:
    """What a `TrainingFailedError` says of who failed.

    When a worker dies, the others fail in a collective: the death is what happened.
    """
    from ray.exceptions import RayActorError
    from ray.train.v2.api.exceptions import ControllerError, PreemptionError, WorkerGroupError

    if isinstance(error, PreemptionError):
        return FailureKind.PREEMPTED
    if isinstance(error, ControllerError):
        kinds = WorkerGroupFailure.STARTUP, WorkerGroupFailure.STARTUP_TIMEOUT
        not_started = any(kind.matches(error.controller_failure) for kind in kinds)
        return FailureKind.START if not_started else FailureKind.RAISED
    failures = list(error.worker_failures.values()) if isinstance(error, WorkerGroupError) else []
    causes = [health_check_cause(one) for one in failures]
    if any(isinstance(one, RayActorError) and one.preempted for one in causes):
        return FailureKind.PREEMPTED
    died = any(isinstance(one, RayActorError) or WorkerGroupFailure.HEALTH_CHECK_TIMEOUT.matches(one) for one in causes)
    return FailureKind.DIED if died else FailureKind.RAISED
