"""What the comparison of a sweep takes from the start of the process to the files, in time and memory, and whether it says the same twice.

`crossmesh status` is asked of a sweep of as many points. How the runs are made is `sweep_store.py`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.console import Console
from crossmesh.environments import python_path
from crossmesh.errors import CrossmeshError
from crossmesh.files import digest_file
from crossmesh.installation import job_command
from crossmesh.sweep.runs import STATE_ARTIFACT
from crossmesh.sweep.state import DONE, Point, SweepState, sweeps_folder, write_state
from crossmesh.track.trackers import open_tracker
from crossmesh.verify.compare_speed.sweep_store import make_sweep
from crossmesh.verify.result import CheckResult, Limit

RUNS, STEPS = 200, 100
BOUND_S, BOUND_MB = 10.0, 500.0
_FILES = ("report.html", "report.json", "report.md")
_LONGEST_S = 1200.0


@dataclass(frozen=True)
class _Ran:
    """A job that ended."""

    said: dict[str, Any]
    seconds: float
    megabytes: float
    """Most memory that it held at once."""


def verify_compare_speed(spec: ExperimentSpec, folder: Path, console: Console, runs: int = RUNS) -> CheckResult:
    """Make the runs, compare them twice and ask where they stand, in processes of their own; hold times, memory and files to the bounds."""
    storage = folder / "storage"
    with console.stage(f"make {runs} runs of {STEPS} steps") as stage:
        parent = make_sweep(spec, storage, runs, STEPS, stage)
        _keep_state(storage, parent, runs)
    compared, digests = [], []
    for number in (1, 2):
        with console.stage(f"compare, {number} of 2"):
            compared.append(_run("compare", f"sweep={parent}", f"storage.root={storage}", f"folder={folder / 'reports'}"))
        report = Path(compared[-1].said["report"])
        digests.append([digest_file(report.with_name(name)) for name in _FILES])
    with console.stage("where it stands, from the storage as JSON and as a table, then from the tracker"):
        asked = [_run("status", f"storage.root={storage}")]
        table = _run("status", f"storage.root={storage}", output="table")
        for file in sweeps_folder(storage).rglob("*.json"):
            file.unlink()
        asked.append(_run("status", f"storage.root={storage}"))
    every = (*compared, *asked, table)
    return CheckResult(
        "compare_speed",
        (
            Limit("seconds", max(one.seconds for one in every), BOUND_S),
            Limit("megabytes", max(one.megabytes for one in every), BOUND_MB),
            Limit("files_that_differ", float(sum(one != other for one, other in zip(*digests, strict=True))), 0.0),
            Limit("runs_compared", float(len(compared[0].said["variants"])), float(runs), at_least=True),
            Limit("points_told", float(min(len(one.said["points"]) for one in asked)), float(runs), at_least=True),
        ),
        {
            "compare_seconds": [one.seconds for one in compared],
            "status_seconds": [one.seconds for one in (*asked, table)],
            "compare_megabytes": [one.megabytes for one in compared],
            "status_megabytes": [one.megabytes for one in (*asked, table)],
            "groups": len(compared[0].said["groups"]),
            "html_bytes": report.stat().st_size,
            "json_bytes": report.with_name("report.json").stat().st_size,
            "headline": compared[0].said["headline"],
        },
    )


def _keep_state(storage: Path, parent: str, runs: int) -> None:
    """Let the storage and the tracker have where the sweep stands, as its driver does."""
    points = tuple(
        Point(f"{number:016x}", f"optim.seed={number}", (f"optim.seed={number}",), DONE, step=STEPS, steps=STEPS, loss=0.1, seconds=60.0)
        for number in range(runs)
    )
    state = SweepState("sweep", "finetune", "sweep", job_command("finetune"), parent, at=time.time(), points=points)
    write_state(sweeps_folder(storage) / "sweep", state)
    open_tracker(TrackingSpec(), StorageSpec(str(storage))).artifact_json(parent, STATE_ARTIFACT, state.json())


def _run(job: str, *arguments: str, output: str = "json") -> _Ran:
    """Run a job as a user does."""
    command = [sys.executable, "-m", "crossmesh", job, *arguments, f"output={output}"]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err, env={**os.environ, "PYTHONPATH": python_path()})
        try:
            code, usage = _wait(process.pid, start + _LONGEST_S)
        except TimeoutError:
            process.kill()
            raise CrossmeshError(f"crossmesh {job} did not end within {_LONGEST_S:g} s.") from None
        seconds = time.perf_counter() - start
        process.returncode = code  # It is waited for.
        for stream in (out, err):
            stream.seek(0)
        if code:
            raise CrossmeshError(f"crossmesh {job} ended with {code}: {err.read().decode().strip()[-2000:]}")
        said: dict[str, Any] = json.loads(out.read().splitlines()[-1]) if output == "json" else {}
        return _Ran(said, seconds, usage.ru_maxrss * 1024 / 1e6)


def _wait(process: int, until: float) -> tuple[int, Any]:
    """The exit code of a child and what it used."""
    while time.perf_counter() < until:
        found, status, usage = os.wait4(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), usage
        time.sleep(0.01)
    raise TimeoutError
