"""Prove one thing and exit 1 when it does not hold: `crossmesh verify check=training_parity`."""

import sys
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Console as RichConsole

from crossmesh.config.compose import run_job
from crossmesh.config.job import Job, JobKeys
from crossmesh.console import Console
from crossmesh.errors import CrossmeshError
from crossmesh.installation import conf_folder


@dataclass(frozen=True)
class VerifyKeys(JobKeys):
    """The job's own keys."""

    check: str = ""
    """training_parity, packing, loss_head, train_overhead, resume, exchange, adapters, plan_depths, compare_speed, sweep_overhead or
    unlike."""
    runs: int = 0
    """Runs that compare_speed makes; 0: 200."""


def run(job: Job[VerifyKeys]) -> None:
    """Run the check and print its verdict and figures."""
    from crossmesh.verify.checks import find_check

    name, console = job.keys.check, Console()
    check = find_check(name, job.keys.runs)
    folder = job.spec.storage.path / "verify" / f"{name}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S')}"
    result = check(job.spec, folder, console)
    console.finish(lambda: result.show(RichConsole(highlight=False)), result.record(), job.keys.output)
    console.say(f"files of the check: {folder}")
    if not result.passed:
        sys.exit(CrossmeshError.exit_code)


def main() -> None:
    """Run the job that the command line asks for."""
    run_job("verify", VerifyKeys, run, conf_folder(), slow=True)
