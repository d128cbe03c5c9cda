"""Whether this machine can run jobs, and what mends it: `python jobs/doctor.py`, with `hardware=NAME` for what you will rent."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))

from crossmesh.interpreter import require_packages

require_packages()

from rich.console import Console as RichConsole

from crossmesh.console import Console
from crossmesh.errors import CrossmeshError
from crossmesh.spec.compose import Job, JobKeys, run_job


def run(job: Job[JobKeys]) -> None:
    """Print all findings; exit code 1 when one is a fault."""
    from crossmesh.doctor.examination import FAULT, count, examine, record, show

    findings = examine(job.spec)
    Console().finish(lambda: show(findings, RichConsole(highlight=False)), record(findings), job.keys.output)
    if count(findings, FAULT):
        sys.exit(CrossmeshError.exit_code)


if __name__ == "__main__":
    run_job("doctor", JobKeys, run, Path(__file__).resolve().parents[1] / "conf", try_storage=False)
