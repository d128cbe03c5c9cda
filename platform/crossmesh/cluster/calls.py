"""Functions that a job calls in a worker environment, on a node that has it."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from crossmesh.cluster.growth import Growth, read_view
from crossmesh.cluster.nodes import NODE_SHARE, held_hosts, wait_for
from crossmesh.cluster.session import users_cluster
from crossmesh.environments import WorkerEnvironment, environment
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.hardware.devices import Cpu, Device, Gpu, Tpu

_Result = TypeVar("_Result")


def call_worker(kind: str, device: Device, function: Callable[..., _Result], *arguments: object) -> _Result:
    """Call an importable `function` in a worker of the environment `kind` and return what it returns.

    A `CrossmeshError` arrives as itself, without Ray's traceback; any other failure as Ray's `RayTaskError`. A library that the worker
    lacks is an `InputError` that names the lock which has it.
    """
    worker = environment(kind, device)
    watch = _node_for(worker, device)
    with task_options(worker, device) as options:
        task = ray.remote(function).options(**options).remote(*arguments)
        try:
            wait_for(lambda wait_s: bool(ray.wait([task], timeout=wait_s)[0]), device, watch)
            result: _Result = ray.get(task)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, CrossmeshError):
                raise error.cause from None
            if missing := lacking(str(error.cause), worker, device):
                raise InputError(missing) from None
            raise
        except (KeyboardInterrupt, InputError):
            cancel_task(task)
            raise
    return result


def _node_for(worker: WorkerEnvironment, device: Device) -> Growth | None:
    """Wait until the user's cluster has a node for `worker`, and return what watches for one that never comes; None on a local Ray.

    A helper takes no chip, so that asking for it alone would start a node with any number of these GPUs; training needs all of them on one
    node. A placement group asks for that node, and goes when it is there. TPU slices are asked for by `task_options`.
    """
    if isinstance(device, Cpu) or worker.kind == "head" or users_cluster() is None:
        return None
    if isinstance(device, Tpu):
        return Growth(device)
    chips = device.count if worker.kind.startswith("train/") else 1
    watch, seen = Growth(device, chips), read_view()
    if seen is not None and not any(node.is_of(device, chips) for node in seen.nodes):
        with held_hosts(device, 1) as hosts:
            wait_for(hosts.wait, device, watch)
    return watch


def lacking(said: str, worker: WorkerEnvironment, device: Device) -> str:
    """What to do about a worker that `said` that it has no module of some name; empty when it failed otherwise."""
    found = re.search(r"No module named '([\w.]+)'", said)
    if found is None:
        return ""
    where = worker.python or "the one that runs Ray there"
    local = " hardware=cpu is for one machine (`make install`)." if isinstance(device, Cpu) else ""
    return (
        f"A worker of {worker.kind} on {device.chip} has no module {found[1]!r}: its environment ({where}) is not made from "
        f"requirements/{worker.lock}. On a cluster's node requirements/install-node.sh makes it.{local}"
    )


def cancel_task(task: Any, wait_s: float = 0.0) -> None:
    """Cancel a Ray task and wait up to `wait_s` for its end; one that has ended is left alone.

    Ray 2.60 may abort this process when a task is cancelled in the moment in which its result arrives.
    """
    if ray.wait([task], timeout=0)[0]:
        return
    ray.cancel(task)
    ray.wait([task], timeout=wait_s)


@contextmanager
def task_options(worker: WorkerEnvironment, device: Device, slices: int = 1) -> Iterator[dict[str, Any]]:
    """Yield options of a Ray task that needs the environment `worker` and no chip: on a node that has it.

    Nodes have the environment of their own hardware only, so one with the chip is asked for (an autoscaler then starts it). A TPU slice is
    held as a whole while the block runs, so that the task runs on a host of it and starts no other slice.

    Args:
        worker: the environment.
        device: what the work is for.
        slices: how many slices of it the work will use.
    """
    options: dict[str, Any] = {"num_cpus": 0, "resources": {}, "max_retries": 0, "runtime_env": worker.runtime_env}
    match device:
        case Gpu() if worker.kind != "head":
            yield options | {"resources": {device.node_resource: NODE_SHARE}}
        case Tpu() if worker.kind != "head":
            with held_hosts(device, slices) as hosts:
                yield options | {"scheduling_strategy": PlacementGroupSchedulingStrategy(hosts, placement_group_bundle_index=0)}
        case _:
            yield options
