"""Plan before you pay: `crossmesh plan experiment=gemma4_31b_codev_v5p8_tp4`; `-m` plans a sweep."""

import sys
from dataclasses import dataclass
from pathlib import Path

from crossmesh.config.command_line import command
from crossmesh.config.compose import Job, JobKeys, run_job, sweep_overrides
from crossmesh.errors import require
from crossmesh.installation import conf_folder, job_command
from crossmesh.paper.training import report_paper
from crossmesh.report.plans.collect import Plans


@dataclass(frozen=True)
class PlanKeys(JobKeys):
    """The job's own keys."""

    folder: str = ""
    """Where JSON, CSV, charts and HTML go; empty: `storage.root/plans`."""


def main() -> None:
    """Plan every point that the command line names, then show them together."""
    plans, typed = Plans(), command(job_command("plan"), sys.argv[1:])

    def run(job: Job[PlanKeys]) -> None:
        if job.spec.plan.report == "paper":
            require(sweep_overrides() is None, "plan.report", "paper", "once, without -m")
            folder = Path(job.keys.folder or job.spec.storage.path / "plans" / "paper")
            report_paper(job.spec, folder, job.keys.output, typed)
        else:
            plans.add(job.spec, job.keys.output, job.keys.folder)

    with plans.collecting(typed):
        run_job("plan", PlanKeys, run, conf_folder(), plans.refuse)
