"""Where a sweep stands, from any machine: `crossmesh status`, `sweep=ID`, `follow=true`."""

from dataclasses import dataclass

from rich.console import Console as RichConsole

from crossmesh.config.compose import run_job
from crossmesh.config.job import Job, JobKeys
from crossmesh.console import Console
from crossmesh.installation import conf_folder
from crossmesh.sweep.policy import exit_code
from crossmesh.sweep.runs import as_result
from crossmesh.sweep.status import follow, show, sweep_status


@dataclass(frozen=True)
class StatusKeys(JobKeys):
    """The job's own keys."""

    sweep: str = ""
    """Run id of a sweep, or how it begins; empty: the one that was heard of last."""
    follow: bool = False
    """Show it until it ends."""


def run(job: Job[StatusKeys]) -> None:
    """Show every point of the sweep."""
    spec, keys = job.spec, job.keys
    now = follow(lambda: sweep_status(spec, keys.sweep)) if keys.follow else sweep_status(spec, keys.sweep)
    values = as_result(now.state, exit_code(now.state.points)) | {"alive": now.alive, "note": now.note}
    Console().finish(lambda: show(now, RichConsole(highlight=False)), values, keys.output)


def main() -> None:
    """Run the job that the command line asks for."""
    run_job("status", StatusKeys, run, conf_folder())
