"""Plan before you pay: `crossmesh plan experiment=gemma4_31b_codev_v5p8_tp4`; `-m` plans a sweep."""

import sys
from dataclasses import dataclass

from crossmesh.config.command_line import command
from crossmesh.config.compose import Job, JobKeys, run_job
from crossmesh.installation import conf_folder, job_command
from crossmesh.report.plans import Plans


@dataclass(frozen=True)
class PlanKeys(JobKeys):
    """The job's own keys."""

    folder: str = ""
    """Where JSON, CSV, charts and HTML go; empty: `storage.root/plans`."""


def main() -> None:
    """Plan every point that the command line names, then show them together."""
    plans = Plans()

    def run(job: Job[PlanKeys]) -> None:
        plans.add(job.spec, job.keys.output, job.keys.folder)

    with plans.collecting(command(job_command("plan"), sys.argv[1:])):
        run_job("plan", PlanKeys, run, conf_folder(), plans.refuse)
