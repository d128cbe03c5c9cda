"""Open MLflow on localhost with the runs: `python jobs/ui.py`."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))

from crossmesh.errors import require
from crossmesh.spec.compose import Job, JobKeys, run_job
from crossmesh.track.tracker import UI_PORT, Tracker


@dataclass(frozen=True)
class UiKeys(JobKeys):
    """The job's own keys."""

    port: int = UI_PORT

    def __post_init__(self) -> None:
        """Check the port."""
        super().__post_init__()
        require(0 < self.port < 65536, "port", self.port, "1 to 65535")


def run(job: Job[UiKeys]) -> None:
    """Become MLflow's UI; Ctrl-C ends it."""
    tracker = Tracker(job.spec.tracking, job.spec.storage)
    arguments = tracker.ui_arguments(job.keys.port)
    print(f"http://127.0.0.1:{job.keys.port} (Ctrl-C ends it)", file=sys.stderr, flush=True)
    os.execv(arguments[0], arguments)


if __name__ == "__main__":
    run_job("ui", UiKeys, run, Path(__file__).resolve().parents[1] / "conf")
