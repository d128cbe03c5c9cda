"""Open MLflow on localhost with the runs and prepared views of them: `crossmesh ui`."""

import os
import sys
from dataclasses import dataclass

from crossmesh.config.compose import run_job
from crossmesh.config.job import Job, JobKeys
from crossmesh.errors import InputError, require
from crossmesh.installation import conf_folder
from crossmesh.ports import free_port, port_taken
from crossmesh.track.mlflow.tracker import UI_PORT, MlflowTracker


@dataclass(frozen=True)
class UiKeys(JobKeys):
    """The job's own keys."""

    port: int = UI_PORT
    """Port of 127.0.0.1."""

    def __post_init__(self) -> None:
        """Check the port."""
        super().__post_init__()
        require(0 < self.port < 65536, "port", self.port, "1 to 65535")


def run(job: Job[UiKeys]) -> None:
    """Say where the prepared views are and become MLflow's UI; Ctrl-C ends it. A server that has one is left to show them."""
    require("mlflow" in job.spec.tracking.trackers, "tracking.trackers", list(job.spec.tracking.trackers), "with mlflow, whose UI this is")
    tracker = MlflowTracker(job.spec.tracking, job.spec.storage)
    if not tracker.has_ui and (holder := port_taken("127.0.0.1", job.keys.port)):
        raise InputError(
            f"port={job.keys.port}: the port of 127.0.0.1 is taken by {holder}. Give another, e.g. port={free_port()}; or end that process."
        )
    address = tracker.uri.rstrip("/") if tracker.has_ui else f"http://127.0.0.1:{job.keys.port}"
    for title, place in tracker.prepare_views(address).items():
        print(f"{title}\n  {place}", file=sys.stderr)  # noqa: T201
    if tracker.has_ui:
        return
    print(f"{address} (Ctrl-C ends it)", file=sys.stderr, flush=True)  # noqa: T201
    arguments = tracker.ui_arguments(job.keys.port)
    os.execv(arguments[0], arguments)


def main() -> None:
    """Run the job that the command line asks for."""
    run_job("ui", UiKeys, run, conf_folder())
