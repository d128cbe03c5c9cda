"""Serve a base model and PEFT adapters until Ctrl-C: `crossmesh serve serve.adapters=[a:/path/to/adapter,b:RUN]`.

`add_key=NAME` makes an API key for somebody, shows it once, and ends; `revoke_key=NAME` takes it back. Running servers follow.
"""

from dataclasses import dataclass

from crossmesh.config.compose import run_job
from crossmesh.config.job import Job, JobKeys
from crossmesh.console import Console
from crossmesh.installation import conf_folder


@dataclass(frozen=True)
class ServeKeys(JobKeys):
    """The job's own keys."""

    add_key: str = ""
    """Name of an API key to make."""
    revoke_key: str = ""
    """Name of an API key to take back."""


def run(job: Job[ServeKeys]) -> None:
    """Plan, start the server, say where it is, and wait; or make or take back a key."""
    from crossmesh.cluster.session import ray_session, users_cluster
    from crossmesh.pipeline.serving import change_keys, serve_until_interrupted
    from crossmesh.plan.gate import gate_serving
    from crossmesh.plan.planner import own_planner
    from crossmesh.serve.applications import check_local_port

    if job.keys.add_key or job.keys.revoke_key:
        change_keys(job.spec.storage.path, job.keys.add_key, job.keys.revoke_key, Console(), job.keys.output)
        return
    gate_serving(job.spec, own_planner(job.spec))
    if users_cluster() is None:
        check_local_port(job.spec.serve.host, job.spec.serve.port)
    with ray_session(job.spec.storage):
        serve_until_interrupted(job.spec, Console(), job.keys.output)


def main() -> None:
    """Run the job that the command line asks for."""
    run_job("serve", ServeKeys, run, conf_folder(), slow=True)
