"""Whether this machine or cluster can run jobs, and what mends it: `crossmesh doctor`, with `hardware=NAME` for what you will rent."""

import sys
from dataclasses import dataclass

from rich.console import Console as RichConsole

from crossmesh.config.compose import run_job
from crossmesh.config.job import Job, JobKeys
from crossmesh.console import Console
from crossmesh.errors import CrossmeshError, require
from crossmesh.installation import conf_folder


@dataclass(frozen=True)
class DoctorKeys(JobKeys):
    """The job's own keys."""

    start_nodes: bool = False
    """Start nodes of `hardware=` on a cluster that has none now: they cost money."""
    node_timeout_s: float = 60.0
    """How long a node of the cluster may take to answer."""

    def __post_init__(self) -> None:
        """Check the time."""
        super().__post_init__()
        require(self.node_timeout_s > 0, "node_timeout_s", self.node_timeout_s, "seconds, more than 0")


def run(job: Job[DoctorKeys]) -> None:
    """Print all findings; exit code 1 when one is a fault."""
    from crossmesh.doctor.diagnosis import diagnose
    from crossmesh.doctor.finding import FAULT
    from crossmesh.doctor.report import count, print_diagnosis, record

    console = Console()
    report = diagnose(job.spec, console, start_nodes=job.keys.start_nodes, node_timeout_s=job.keys.node_timeout_s)
    console.finish(lambda: print_diagnosis(report, RichConsole(highlight=False)), record(report), job.keys.output)
    if count(report.all, FAULT):
        sys.exit(CrossmeshError.exit_code)


def main() -> None:
    """Run the job that the command line asks for."""
    run_job("doctor", DoctorKeys, run, conf_folder(), try_storage=False)
