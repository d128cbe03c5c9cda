"""This machine and, where `RAY_ADDRESS` names one, the cluster, looked at side by side; and a chip of this machine where it has one."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from crossmesh.cluster.session import users_cluster
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.console import Console
from crossmesh.doctor.accelerators import SeenAccelerators, seen_here
from crossmesh.doctor.chip_speed import chip_findings, measured_here
from crossmesh.doctor.cluster_examination import examine_cluster
from crossmesh.doctor.examination import examine
from crossmesh.doctor.finding import Finding
from crossmesh.doctor.report import Diagnosis
from crossmesh.hardware.devices import Device, Gpu, Tpu
from crossmesh.hardware.emulation import emulating


def diagnose(spec: ExperimentSpec, console: Console, *, start_nodes: bool, node_timeout_s: float) -> Diagnosis:
    """Look at everything; see `cluster_examination` for a cluster's nodes."""
    with ThreadPoolExecutor(1) as pool:
        here = pool.submit(examine, spec)
        if users_cluster() is not None:
            cluster = examine_cluster(spec, console, start_nodes=start_nodes, node_timeout_s=node_timeout_s)
            return Diagnosis((*here.result(), *cluster.findings), cluster.nodes)
        return Diagnosis((*here.result(), *_chip_here(spec, console, node_timeout_s)))


def _chip_here(spec: ExperimentSpec, console: Console, within_s: float) -> Iterator[Finding]:
    seen = seen_here()
    if seen == SeenAccelerators() or emulating():
        return
    chosen = spec.hardware.slice
    device: Device = chosen.device
    if not isinstance(device, Gpu if seen.gpus else Tpu):
        device = Gpu(seen.gpus[0].name, len(seen.gpus), "") if seen.gpus else Tpu("TPU", f"{seen.tpus}x1", "TPU-1", seen.tpus)
    console.say("measuring one chip of this machine")
    yield from chip_findings(measured_here(device, within_s), chosen.chip if device == chosen.device else None, device)
