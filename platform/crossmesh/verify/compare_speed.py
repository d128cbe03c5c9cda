"""How long the comparison of a sweep of 200 runs takes, from the start of the process to the files, and whether it says the same twice.

The runs are real ones of a scratch MLflow store, made through the tracker with the records of real specs; only their metrics are made up.
"""

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from crossmesh.console import Console, Stage
from crossmesh.errors import CrossmeshError
from crossmesh.files import digest_file
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.spec.fingerprint import ScienceFacts, science_record, system_record, trial_identity
from crossmesh.spec.services import StorageSpec, TrackingSpec
from crossmesh.spec.training import HardwareSpec, MeshSpec
from crossmesh.track.provenance import gather_provenance
from crossmesh.track.tracker import Tracker
from crossmesh.verify.result import CheckResult, Limit

RUNS, STEPS = 200, 100
BOUND_S = 10.0
_BATCH = 32
_RATES = (1e-4, 2e-4, 3e-4, 4e-4, 5e-4, 6e-4, 7e-4)
_JOB = Path(__file__).resolve().parents[3] / "jobs" / "compare.py"
_FILES = ("report.html", "report.json", "report.md")


def verify_compare_speed(spec: ExperimentSpec, folder: Path, console: Console) -> CheckResult:
    """Make the runs, compare them twice in processes of their own, and hold time and files against each other."""
    storage = folder / "storage"
    with console.stage(f"make {RUNS} runs of {STEPS} steps") as stage:
        parent = make_sweep(spec, storage, RUNS, STEPS, stage)
    seconds, said, digests = [], {}, []
    for number in (1, 2):
        with console.stage(f"compare, {number} of 2"):
            start = time.perf_counter()
            said = _compare(parent, storage, folder / "reports")
            seconds.append(time.perf_counter() - start)
        digests.append([digest_file(Path(said["report"]).with_name(name)) for name in _FILES])
    return CheckResult(
        "compare_speed",
        (
            Limit("seconds", max(seconds), BOUND_S),
            Limit("files_that_differ", float(sum(one != other for one, other in zip(*digests, strict=True))), 0.0),
            Limit("runs_compared", float(len(said["variants"])), float(RUNS), at_least=True),
        ),
        {
            "seconds": seconds,
            "groups": len(said["groups"]),
            "html_bytes": Path(said["report"]).stat().st_size,
            "headline": said["headline"],
        },
    )


def _compare(parent: str, storage: Path, reports: Path) -> dict[str, Any]:
    """Run the job as a user does and return what it said."""
    command = [sys.executable, str(_JOB), f"sweep={parent}", f"storage.root={storage}", f"folder={reports}", "output=json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise CrossmeshError(f"jobs/compare.py ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def make_sweep(spec: ExperimentSpec, storage: Path, runs: int, steps: int, stage: Stage, rates: Sequence[float] = _RATES) -> str:
    """Make a sweep of finished training runs in an MLflow store under `storage` and return the id of its parent.

    A run has the `rates`' next learning rate, which changes what is learnt, and the next of 32 systems, which change the speed.
    """
    tracker = Tracker(TrackingSpec(), StorageSpec(str(storage)))
    provenance = gather_provenance()
    parent = tracker.start("sweep", "sweep")
    spec = replace(spec, batch=replace(spec.batch, size=_BATCH, micro=1), optim=replace(spec.optim, steps=steps))
    systems = tuple(_systems(spec))
    for number in range(runs):
        own = systems[number % len(systems)]
        own = replace(own, optim=replace(own.optim, learning_rate=rates[number % len(rates)]))
        _make_run(tracker, own, provenance, parent, number)
        stage.progress("runs", number + 1, runs)
    tracker.finish(parent)
    return parent


def _systems(spec: ExperimentSpec) -> Iterator[ExperimentSpec]:
    """Points that learn the same."""
    for mesh, micro, slice_ in product(range(4), (1, 2, 4, 8), ("tpu_v5p_8", "gpu_2xh100")):
        tp = min(2 ** (mesh % 3), 2 if slice_.startswith("gpu") else 4)
        yield replace(
            spec,
            hardware=HardwareSpec(name=slice_),
            mesh=MeshSpec(fsdp=-1, tp=tp),
            batch=replace(spec.batch, micro=micro),
            backend=replace(spec.backend, remat="layer" if mesh == 3 else "none"),
        )


def _make_run(tracker: Tracker, spec: ExperimentSpec, provenance: Any, parent: str, number: int) -> None:
    """One finished run with the records of `spec`; its speed follows from its number."""
    rows = tuple(tuple(f"row-{step * _BATCH + row}" for row in range(_BATCH)) for step in range(spec.optim.steps))
    lora = {"modules": [f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(30) for name in "qkvo"], "rank": spec.lora.rank}
    science, system = science_record(spec, ScienceFacts("a" * 64, "d" * 64, lora, rows)), system_record(spec)
    run = tracker.start(spec.backend_name, "train", parent=parent, identity=trial_identity(science, system), params=spec)
    tracker.records(run, science.contents, system.contents)
    tracker.provenance(run, provenance)
    rate = 1000.0 + 7 * (number % 53)
    for step in range(1, spec.optim.steps + 1):
        speed = rate * (1 + 0.01 * math.sin(step + number))
        loss = 2.0 * math.exp(-step / 40) + 0.1 + spec.optim.learning_rate
        tracker.metrics(run, {"train/loss": loss, "train/tokens_per_s": speed, "train/padded_tokens_per_s": 1.3 * speed}, step)
    tokens = 200 * _BATCH * spec.optim.steps
    rates = {"tokens_per_s_steady": rate, "padded_tokens_per_s_steady": 1.3 * rate}
    totals = {**rates, "final_loss": loss, "seconds": tokens / rate, "tokens": tokens, "loss_tokens": tokens // 5}
    tracker.metrics(run, {f"train/{name}": value for name, value in totals.items()}, spec.optim.steps)
    tracker.finish(run)
