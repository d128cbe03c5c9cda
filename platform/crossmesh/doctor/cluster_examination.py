"""A cluster's nodes, looked at side by side: each by a small process pinned to it, which takes no chip, and one more that measures a chip.

Every question has a time limit, and a node that does not answer in it is a finding. No node is started unless that is asked for.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Queue
from threading import Semaphore, Thread
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from crossmesh.cluster.calls import cancel_task, lacking
from crossmesh.cluster.nodes import bring_up
from crossmesh.cluster.session import ray_session
from crossmesh.compat.ray_core import free_resources
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec
from crossmesh.console import Console, Stage
from crossmesh.doctor.chip_speed import chip_findings, framework_of, measure_chip
from crossmesh.doctor.clocks import ClockSample, skew_finding
from crossmesh.doctor.finding import Finding, fault, note, ok
from crossmesh.doctor.node_probe import NodeProbe, Visit, packages_of
from crossmesh.doctor.nodes import Probed, RayNode, chosen, is_up, listed
from crossmesh.doctor.report import Diagnosis, NodeReport
from crossmesh.doctor.sharing import Shared, offered, sharing_finding
from crossmesh.environments import WorkerEnvironment, environment
from crossmesh.errors import InputError
from crossmesh.hardware.catalogue import slices
from crossmesh.hardware.devices import Cpu, Device, Gpu, Tpu
from crossmesh.hardware.emulation import emulating

_AT_ONCE = 32
_QUESTIONS = 5
"""Of the clock: the fastest bounds the error."""
_START_S = 1200.0
"""A TPU slice or GPU node takes minutes to come."""


def examine_cluster(spec: ExperimentSpec, console: Console, *, start_nodes: bool, node_timeout_s: float) -> Diagnosis:
    """Look at the nodes of the cluster that `RAY_ADDRESS` names."""
    try:
        with ray_session(spec.storage):
            return _examined(replace(spec, storage=StorageSpec(str(spec.storage.path))), console, start_nodes, node_timeout_s)
    except InputError as error:
        said, _, _ = str(error).partition(". ")
        return Diagnosis((fault("cluster", said, "unset RAY_ADDRESS    # a local Ray; or: ray up cluster.yaml"),))


def _examined(spec: ExperimentSpec, console: Console, start_nodes: bool, timeout_s: float) -> Diagnosis:
    device, catalogue = spec.hardware.slice.device, list(slices(spec.hardware.catalogue).values())
    findings = []
    if not isinstance(device, Cpu) and not is_up(listed(ray.nodes()), device, spec.mesh.dcn):
        findings.append(_missing(spec, device, console, start_nodes=start_nodes))
    nodes = listed(ray.nodes())
    probed = chosen(nodes, catalogue, ray.get_runtime_context().get_node_id())
    gone = len({one["NodeID"] for one in ray.nodes() if not one["Alive"]})
    said = f"{len(nodes)} alive, {len(probed)} looked at: of each kind one, of TPU slices all hosts of one"
    findings.insert(0, ok("nodes", said + (f"; {gone} were here and are gone" if gone else "")))
    if not probed:
        return Diagnosis(tuple(findings))
    with (
        console.stage(f"looking at {len(probed)} {'node' if len(probed) == 1 else 'nodes'} of the cluster") as stage,
        offered(spec.storage.path) as shared,
    ):
        return Diagnosis(tuple(findings), tuple(_visited(spec, probed, shared, timeout_s, stage)))


def _missing(spec: ExperimentSpec, device: Gpu | Tpu, console: Console, *, start_nodes: bool) -> Finding:
    """Hardware that was chosen and is not up: said, or with `start_nodes` asked for."""
    name = spec.hardware.name
    title, many = f"hardware={name}", f"{spec.mesh.dcn} x " if spec.mesh.dcn > 1 else ""
    if not start_nodes:
        found = f"no node of the cluster has {many}{device.chip_count()} x {device.chip} now. Nothing was started for it"
        return note(title, f"{found}: nodes that start cost money", "start_nodes=true    # asks the autoscaler for them, and looks at them")
    console.say(f"asking the cluster for hardware={name}; it may take minutes")
    try:
        came = bring_up(device, spec.mesh.dcn, _START_S)
    except InputError as error:
        said, _, how = str(error).partition(". ")
        return fault(title, said, how)
    return ok(title, "started") if came else fault(title, f"did not start within {_START_S / 60:.0f} minutes", "ray status -v")


def _visited(spec: ExperimentSpec, probed: Sequence[Probed], shared: Shared, timeout_s: float, stage: Stage) -> Iterator[NodeReport]:
    """The reports in the order of `probed`; progress as they come."""
    found: dict[int, tuple[Finding, ...]] = {}
    answers: Queue[tuple[int, tuple[Finding, ...] | Exception]] = Queue()
    slots = Semaphore(_AT_ONCE)

    def run(index: int, one: Probed) -> None:
        with slots:
            try:
                answers.put((index, _visit(spec, one, shared, timeout_s)))
            except Exception as error:  # noqa: BLE001  # Raised again below.
                answers.put((index, error))

    stage.progress("nodes", 0, len(probed))
    for one in enumerate(probed):  # Daemons: Ctrl-C does not wait for a node that is stuck.
        Thread(target=run, args=one, daemon=True, name=f"doctor-node-{one[0]}").start()
    while len(found) < len(probed):
        index, answer = answers.get()
        if isinstance(answer, Exception):
            raise answer
        found[index] = answer
        stage.progress("nodes", len(found), len(probed))
    for index, node in enumerate(probed):
        yield NodeReport(node.node.id, node.node.address, node.title, node.alike, found[index])


def _visit(spec: ExperimentSpec, probed: Probed, shared: Shared, timeout_s: float) -> tuple[Finding, ...]:
    """Everything of one node."""
    first, *others = environments_of(probed.device)
    found = _asked(first, probed, timeout_s, partial(_looked, spec, probed, first, shared))
    if len(found) > 1:  # It answers.
        for worker in others:
            found += _asked(worker, probed, timeout_s, partial(_locked, worker, probed.node))
        if not isinstance(probed.device, Cpu):
            found += _asked(first, probed, timeout_s, partial(_measured, first, probed))
    return tuple(found)


def environments_of(device: Device) -> list[WorkerEnvironment]:
    """The environments that jobs of this hardware use on its nodes, the one of training first; on a CPU the driver's."""
    if isinstance(device, Cpu):
        return [environment("head", device)]
    kinds = ("train/torch", "train/jax", "serve/vllm-gpu") if isinstance(device, Gpu) else ("train/jax", "serve/vllm-tpu")
    found: list[WorkerEnvironment] = []
    for worker in (environment(kind, device) for kind in kinds if not (emulating() and kind.startswith("serve/"))):
        if all((worker.python, worker.lock) != (other.python, other.lock) for other in found):
            found.append(worker)
    own = [one for one in found[1:] if one.python is not None or one.lock == found[0].lock]
    return [found[0], *own]  # Another lock without an interpreter of its own is an environment that this cluster has not.


def _asked(
    worker: WorkerEnvironment, probed: Probed, timeout_s: float, ask: Callable[[Callable[[], float]], list[Finding]]
) -> list[Finding]:
    """What `ask` finds within the time, or why there is no answer."""
    end = time.monotonic() + timeout_s
    node = probed.node
    logs = f"ray logs cluster --node-id {node.id}"
    try:
        return ask(lambda: max(0.01, end - time.monotonic()))
    except ray.exceptions.GetTimeoutError:
        python = f", or {worker.python} does not exist there (requirements/install-node.sh)" if worker.python else ""
        said = f"no answer from {worker.kind} within {timeout_s:g} s"
        return [fault("node", said, f"{logs}    # the node or its Ray is stuck{python}; node_timeout_s={2 * timeout_s:g} waits longer")]
    except ray.exceptions.RayTaskError as error:
        missing = lacking(str(error.cause), worker, probed.device)
        said = missing or f"{type(error.cause).__name__}: {str(error.cause).strip().partition(chr(10))[0]}"
        return [fault("node", f"{worker.kind} failed there: {said}", f"bash requirements/install-node.sh ...    # or see {logs}")]
    except ray.exceptions.RayError as error:
        first = str(error).strip().partition("\n")[0]
        return [fault("node", f"{worker.kind} does not run there: {type(error).__name__}: {first}", logs)]


def _looked(spec: ExperimentSpec, probed: Probed, worker: WorkerEnvironment, shared: Shared, left: Callable[[], float]) -> list[Finding]:
    node = probed.node
    probe = ray.remote(NodeProbe).options(**_pinned(worker, node)).remote()
    try:
        ray.get(probe.now.remote(), timeout=left())  # It has started.
        answers = [_time_of(probe, left) for _ in range(_QUESTIONS)]
        sharing = sharing_finding(shared, ray.get(probe.sight.remote(shared, f"seen-{node.id}"), timeout=left()))
        chips = int(node.resources.get("GPU", 0) or node.resources.get("TPU", 0))
        lock = "" if isinstance(probed.device, Cpu) else worker.lock
        visit = Visit(spec, probed.device, chips, node.head, lock, emulating())
        findings: tuple[Finding, ...] = ray.get(probe.look.remote(visit), timeout=left())
    finally:
        with suppress(ray.exceptions.RayError):
            ray.kill(probe)
    return [*findings, sharing, skew_finding(answers)]


def _time_of(probe: Any, left: Callable[[], float]) -> ClockSample:
    asked = time.time()
    said = ray.get(probe.now.remote(), timeout=left())
    return ClockSample(asked, said, time.time())


def _locked(worker: WorkerEnvironment, node: RayNode, left: Callable[[], float]) -> list[Finding]:
    task = ray.remote(packages_of).options(**_pinned(worker, node), max_retries=0).remote(worker.lock)
    try:
        found: Finding = ray.get(task, timeout=left())
    finally:
        cancel_task(task)
    return [replace(found, name=f"{found.name}, {worker.kind}")]


def _measured(worker: WorkerEnvironment, probed: Probed, left: Callable[[], float]) -> list[Finding]:
    """One chip of the node, where one is free: a job that waits for chips goes on waiting, and one that computes is not disturbed."""
    resource = "GPU" if isinstance(probed.device, Gpu) else "TPU"
    free = free_resources().get(probed.node.id, {})
    if free.get(resource, 0) < 1:
        return [note("bf16 matmul", f"not measured: all {resource} chips of the node are taken")]
    takes: dict[str, Any] = {"num_gpus": 1} if resource == "GPU" else {"resources": {"TPU": 1}}
    options = {**_pinned(worker, probed.node), **takes, "max_retries": 0}
    task = ray.remote(measure_chip).options(**options).remote(framework_of(probed.device), within_s=left())
    waited_s = left()
    try:
        measured = ray.get(task, timeout=waited_s)
    except ray.exceptions.GetTimeoutError:
        return [note("bf16 matmul", f"not measured within {waited_s:.0f} s: slow to start, or its chip was taken meanwhile")]
    finally:
        cancel_task(task)
    return list(chip_findings(measured, probed.hardware.chip if probed.hardware else None, probed.device))


def _pinned(worker: WorkerEnvironment, node: RayNode) -> dict[str, Any]:
    return {
        "num_cpus": 0,
        "runtime_env": worker.runtime_env,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False),
    }
