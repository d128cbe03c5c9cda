"""Plan before you pay: `crossmesh plan experiment=gemma4_31b_codev_v5p8_tp4`; `-m` plans a sweep."""

import sys
from dataclasses import dataclass
from pathlib import Path

from crossmesh.config.command_line import command
from crossmesh.config.compose import run_job
from crossmesh.config.job import Job, JobKeys
from crossmesh.config.points import SweptJobs
from crossmesh.errors import InputError, require
from crossmesh.installation import conf_folder, job_command
from crossmesh.paper.training import report_paper
from crossmesh.pipeline.plans import Plans


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
            folder = Path(job.keys.folder or job.spec.storage.path / "plans" / "paper")
            report_paper(job.spec, folder, job.keys.output, typed)
        else:
            plans.add((), job.spec, job.keys.output, job.keys.folder)

    def sweep(points: SweptJobs[PlanKeys]) -> None:
        plans.expect(len(points))
        for point in points:
            if isinstance(point.job, InputError):
                plans.refuse(point.overrides, point.job)
            else:
                require(point.job.spec.plan.report != "paper", "plan.report", "paper", "once, without -m")
                plans.add(point.overrides, point.job.spec, point.job.keys.output, point.job.keys.folder)

    with plans.collecting(typed):
        run_job("plan", PlanKeys, run, conf_folder(), sweep)
