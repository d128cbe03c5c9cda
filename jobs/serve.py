"""Serve a base model and PEFT adapters until Ctrl-C: `python jobs/serve.py serve.adapters=[a:/path/to/adapter,b:RUN]`."""

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))

from crossmesh.cluster import ray_session
from crossmesh.console import Console
from crossmesh.pipeline.serving import serve_until_interrupted
from crossmesh.plan.gate import gate_serving
from crossmesh.plan.planner import own_planner
from crossmesh.spec.compose import Job, JobKeys, run_job


@dataclass(frozen=True)
class ServeKeys(JobKeys):
    """The job's own keys."""


def run(job: Job[ServeKeys]) -> None:
    """Plan, start the server, say where it is, and wait."""
    gate_serving(job.spec, own_planner(job.spec))
    with ray_session(job.spec.storage):
        serve_until_interrupted(job.spec, Console(), job.keys.output)


if __name__ == "__main__":
    run_job("serve", ServeKeys, run, Path(__file__).resolve().parents[1] / "conf")
