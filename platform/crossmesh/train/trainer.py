"""The Ray Train run of one attempt: built and waited for in a task of the worker environment, so that the driver imports no framework.

`ray.train.torch` imports torch and `ray.train` pulls in much else, hence the imports inside the functions.
"""

from dataclasses import asdict
from typing import Any

from crossmesh.train.assignment import Assignment
from crossmesh.train.scaling import scaling
from crossmesh.train.worker import LOOP_KEY, train_loop_per_worker


def fit(assignment: Assignment) -> None:
    """Run the attempt under Ray Train and return when its workers have ended; a worker's failure is raised."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    arguments: dict[str, Any] = {
        "train_loop_per_worker": train_loop_per_worker,
        "train_loop_config": {LOOP_KEY: assignment},
        "scaling_config": ScalingConfig(**asdict(scaling(assignment.spec.hardware.slice.device))),
        # Ray's own bookkeeping of a run: one folder an attempt, because it refuses to start on a damaged one. Retrying is the
        # driver's: started again, the loop continues from its checkpoint.
        "run_config": RunConfig(name="train", storage_path=str(assignment.attempt / "ray"), failure_config=FailureConfig(max_failures=0)),
    }
    _trainer_class(assignment.spec.backend_name)(**arguments).fit()


def _trainer_class(backend: str) -> Any:
    if backend == "jax":
        from ray.train.v2.jax import JaxTrainer

        return JaxTrainer
    from ray.train.torch import TorchTrainer

    return TorchTrainer
