"""What training costs beside the arithmetic: around the step, in the step, at checkpoints and at the start.

Every figure stands beside a peer's in the same run: a bare loop, TRL, a bare jitted step, a save that waits, a first start.
"""

import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crossmesh.cluster.session import ray_session
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import BACKENDS, ModelSpec
from crossmesh.console import Console, Stage
from crossmesh.models.weights.fetch import fetch_model
from crossmesh.trial.trial import cache_folder
from crossmesh.verify.overhead.run import outside_share
from crossmesh.verify.process import measure
from crossmesh.verify.result import CheckResult, Limit

OUTSIDE_BOUND = 0.02
RATIO_BOUND = 0.97
SAME_WORK_BOUND = 1e-3
"""Losses of contenders on the same batches: if they differ more, they were not given the same work."""
STALL_BOUND = 0.01
WAIT_BOUND = 10.0
START_BOUND = 0.5


@dataclass(frozen=True)
class OverheadSizes:
    """What is measured on; the defaults are the check's."""

    weights: str = "random://small_llama@0"
    start_weights: str = "random://deep_llama@0"
    """As deep as SmolLM2: the time that a start takes follows from the depth."""
    limit: int = 384
    """Tokens of a sequence; a step of the contenders is one sequence."""
    run_steps: int = 100
    """Of a whole run, which is timed from the driver to a fifth of a second."""
    warm_up: int = 3
    rounds: int = 21
    rank: int = 256
    """LoRA rank whose state the checkpoints hold: 140 MB."""
    saves: int = 5


def verify_train_overhead(spec: ExperimentSpec, folder: Path, console: Console, sizes: OverheadSizes | None = None) -> CheckResult:
    """Measure a real run of each backend, its step beside its peers', its checkpoints, and two starts on JAX."""
    sizes, cache = sizes or OverheadSizes(), cache_folder(spec)
    model = fetch_model(ModelSpec(weights=sizes.weights), cache)
    request = {**asdict(sizes), "folder": str(model.path), "cache": str(cache)}
    measured: dict[str, dict[str, Any]] = {backend: {} for backend in BACKENDS}
    for backend, found in measured.items():
        own = {**request, "backend": backend}
        with console.stage(f"{backend}: the step beside its peers") as stage:
            scratch = {"scratch": str(folder / f"peers-{backend}")}
            log = folder / f"step-{backend}.log"
            found["step"] = measure(f"train/{backend}", f"{__package__}.step_{backend}", own | scratch, log, stage)
        with console.stage(f"{backend}: checkpoints behind the loop and before it") as stage:
            scratch = {"scratch": str(folder / f"checkpoints-{backend}")}
            log = folder / f"checkpoints-{backend}.log"
            found["checkpoint"] = measure(f"train/{backend}", f"{__package__}.checkpoint_stall", own | scratch, log, stage)
            shutil.rmtree(folder / f"checkpoints-{backend}")
    with console.stage("jax: two starts of the same spec") as stage:
        measured["jax"]["starts"] = _starts(spec, request, sizes.start_weights, folder, stage)
    with ray_session(spec.storage):
        for backend, found in measured.items():
            with console.stage(f"{backend}: a whole run under Ray Train, tracked") as stage:
                found["run"] = outside_share(spec, backend, sizes.weights, sizes.run_steps, folder / f"run-{backend}", stage)
    return judge_overhead(measured, {"sizes": asdict(sizes)})


def judge_overhead(measured: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]) -> CheckResult:
    """Hold what was measured against the bounds."""
    limits = []
    for backend, found in measured.items():
        step, checkpoint = found["step"], found["checkpoint"]
        limits += [
            Limit(f"{backend}.outside_step_share", found["run"]["outside_share"], OUTSIDE_BOUND),
            *(Limit(f"{backend}.speed_over_{peer}", one["median"], RATIO_BOUND, at_least=True) for peer, one in step["ratios"].items()),
            Limit(f"{backend}.work_differs", max(step["loss_difference"].values()), SAME_WORK_BOUND),
            Limit(f"{backend}.checkpoint_share", checkpoint["share_of_loop"], STALL_BOUND),
            Limit(f"{backend}.checkpoint_wait_over_stall", checkpoint["waited_over_held"]["median"], WAIT_BOUND, at_least=True),
        ]
    first, second = measured["jax"]["starts"]["first"], measured["jax"]["starts"]["second"]
    limits += [
        Limit("jax.second_start_compilations", second["compilations"], 0),
        Limit("jax.first_start_compilations", first["compilations"], 1, at_least=True),
        Limit("jax.second_start_time", second["first_step_s"] / first["first_step_s"], START_BOUND),
    ]
    return CheckResult("train_overhead", tuple(limits), {**settings, **measured})


def _starts(spec: ExperimentSpec, request: Mapping[str, Any], weights: str, folder: Path, stage: Stage) -> dict[str, Any]:
    """Two starts as a user has them, the first with nothing kept: it compiles, and holds the model's logits against transformers."""
    own = {**request, "folder": str(fetch_model(ModelSpec(weights=weights), cache_folder(spec)).path), "cache": str(folder / "starts")}

    def start(which: str) -> dict[str, Any]:
        stage.say(f"{which} start")
        return measure("train/jax", f"{__package__}.start_jax", {**own, "started": time.time()}, folder / f"start-{which}.log", stage)

    starts = {which: start(which) for which in ("first", "second")}
    unprobed = [one["first_step_s"] - one["loading_s"] for one in starts.values()]
    return {**starts, "second_over_first_without_loading": unprobed[1] / unprobed[0]}
