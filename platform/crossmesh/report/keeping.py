"""Keeps a report as a run. Of very many runs a process of its own opens the tracker while this one reads and compares: both take seconds.

Run as a module it is that process: the first line of its input says where runs are tracked, the second what is to be kept; it answers
with the run's id, and ends when its input does.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.environments import python_path
from crossmesh.track.tracker import Tracker
from crossmesh.track.trackers import open_tracker

_END_S = 30.0
KIND = "compare"
MANY = 1000
"""From so many runs on the other process is worth its start."""


@dataclass(frozen=True)
class Kept:
    """A report that is to be kept."""

    title: str
    identity: str
    folder: str
    """Its files."""
    runs: int
    command: str


def keep_report(tracker: Tracker, report: Kept) -> str:
    """Make a run of the report and return its id."""
    params = {"runs": report.runs, "command": report.command}
    run_id = tracker.start(f"{KIND} {report.title}", KIND, identity=report.identity, params=params)
    tracker.artifact_folder(run_id, Path(report.folder), "report")
    tracker.finish(run_id)
    return run_id


class Keeper:
    """A context in which a report can be kept; of `runs` runs, which are many or not.

    Args:
        tracker: of this process. It keeps the report where the runs are few, and where the other process fails.
        tracking: where runs are, for the other process.
        storage: the same.
        runs: how many are compared.
    """

    def __init__(self, tracker: Tracker, tracking: TrackingSpec, storage: StorageSpec, runs: int) -> None:
        self._tracker = tracker
        self._where = json.dumps([asdict(tracking), asdict(storage)])
        self._many = runs >= MANY and tracker.opens_slowly
        self._process: subprocess.Popen[str] | None = None
        self._told = False

    def __enter__(self) -> Self:
        """Start the other process."""
        if self._many:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "PYTHONPATH": python_path()},
            )
            self._tell(self._where)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the other process: it may end what it was told to keep, and else has nothing to do."""
        if self._process is None:
            return
        if not self._told:
            self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=_END_S)
        self._process.kill()
        self._process.wait()

    def keep(self, report: Kept) -> str:
        """Keep a report and return its run."""
        if self._process is not None and self._process.stdout is not None:
            self._told = True
            self._tell(json.dumps(asdict(report)))
            if answer := self._process.stdout.readline().strip():
                return answer
        found = self._tracker.find(report.identity)  # The other process may have ended after it was kept.
        return found.run_id if found else keep_report(self._tracker, report)

    def _tell(self, line: str) -> None:
        try:
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.write(f"{line}\n")
                self._process.stdin.flush()
        except OSError:  # It has ended: this process keeps the report then.
            return


def main() -> None:
    """Be the other process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The input ends when the job does.
    tracking, storage = json.loads(sys.stdin.readline())
    tracker = open_tracker(TrackingSpec(**tracking), StorageSpec(**storage))
    tracker.open_store()
    if line := sys.stdin.readline():
        sys.stdout.write(f"{keep_report(tracker, Kept(**json.loads(line)))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
