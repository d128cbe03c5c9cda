"""What a trial of a sweep costs beside its training: around Ray Train's `fit()`, and within it beside an empty one.

Trials run as a sweep runs them, one after another in one Ray session, tracked; an empty `fit()` with the same workers runs between them,
because a machine that is busy with other things makes both slow.
"""

import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from crossmesh.cluster.calls import call_worker
from crossmesh.cluster.session import ray_session
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec
from crossmesh.config.training import BackendSpec, BatchSpec, DataSpec, ModelSpec, OptimSpec, RtlSpec
from crossmesh.console import Console, Stage
from crossmesh.files import read_json
from crossmesh.sweep.training import Training
from crossmesh.sweep.work import Hooks
from crossmesh.track.tracker import Tracker
from crossmesh.track.trackers import open_tracker
from crossmesh.verify.result import CheckResult, Limit

OUTSIDE_BOUND_S = 5.0
RATIO_BOUND = 1.2
_BACKEND = "torch"
_TRIALS = 4
"""The first warms up: processes of the session, files of the cache."""
_STEPS = 20


def verify_sweep_overhead(spec: ExperimentSpec, folder: Path, console: Console) -> CheckResult:
    """Run trials and empty runs in turns, and hold what a trial costs against the bounds."""
    trials, empty = [], []
    base = _spec(folder)
    tracker = open_tracker(base.tracking, base.storage, console.say)
    parent = tracker.start("overhead", "sweep")
    workload = Training()
    with ray_session(spec.storage):
        for number in range(_TRIALS):
            with console.stage(f"trial {number + 1} of {_TRIALS}, and an empty fit()") as stage:
                own = replace(base, optim=OptimSpec(steps=_STEPS, learning_rate=1e-3 * (number + 1)))
                trials.append(_timed(own, workload, tracker, parent, stage))
                empty.append(call_worker(f"train/{_BACKEND}", base.hardware.slice.device, empty_fit, str(folder / f"empty-{number}")))
                stage.say(f"{trials[-1]}, empty {empty[-1]:.1f} s")
    tracker.finish(parent)
    outside = [one["wall_s"] - one["fit_s"] for one in trials[1:]]
    around = [one["fit_s"] - one["loop_s"] for one in trials[1:]]
    ratios = [mine / theirs for mine, theirs in zip(around, empty[1:], strict=True)]
    return CheckResult(
        "sweep_overhead",
        (
            Limit("seconds_outside_fit", median(outside), OUTSIDE_BOUND_S),
            Limit("start_and_end_over_an_empty_fit", median(ratios), RATIO_BOUND),
        ),
        {"outside_fit_s": outside, "start_and_end_s": around, "empty_fit_s": empty[1:], "ratios": ratios, "first": trials[0]},
    )


def empty_fit(storage: str) -> float:
    """Seconds that Ray Train takes for a worker that does nothing, of the same kind as a trial's."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    start = time.monotonic()
    TorchTrainer(
        train_loop_per_worker=_nothing,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(name="empty", storage_path=storage),
    ).fit()
    return time.monotonic() - start


def _nothing() -> None:
    """Train nothing."""


def _timed(spec: ExperimentSpec, workload: Training, tracker: Tracker, parent: str, stage: Stage) -> dict[str, Any]:
    """Run a trial; return its wall clock, that of `fit()`, and that of the loop in its worker."""
    before = set(spec.storage.path.glob("trials/*/attempts/*"))
    start = time.monotonic()
    workload.run(spec, tracker, Hooks(stage.hear, lambda: None, parent, force=False))
    wall = time.monotonic() - start
    attempt = next(iter(set(spec.storage.path.glob("trials/*/attempts/*")) - before))
    return {
        "wall_s": wall,
        "fit_s": read_json(attempt / "fitted.json")["seconds"],
        "loop_s": read_json(attempt / "ranks" / "0.json")["loop_s"],
    }


def _spec(folder: Path) -> ExperimentSpec:
    return ExperimentSpec(
        name="sweep_overhead",
        model=ModelSpec(weights="random://tiny_llama@0"),
        data=DataSpec(rtl=RtlSpec(train_rows=16, heldout_rows=2, hard_rows=0)),
        batch=BatchSpec(size=4, micro=1),
        backend=BackendSpec(_BACKEND),
        storage=StorageSpec(str(folder / "storage")),
    )
