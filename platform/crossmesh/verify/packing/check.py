"""Packing on both backends: it changes no token's loss, and how fast it trains.

Lengths are distributed as the paper's. On torch TRL's trainer stands beside it, unpacked and packed; on JAX the seed's recipe on Tunix's
own trainer.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import BACKENDS, ModelSpec
from crossmesh.console import Console
from crossmesh.models.weights.fetch import fetch_model
from crossmesh.trial.trial import cache_folder
from crossmesh.verify.packing.speed import SpeedSizes
from crossmesh.verify.process import measure
from crossmesh.verify.result import CheckResult, Limit

TOKEN_BOUND = 1e-5
MIXED_BOUND = 1e-2
"""What the comparison must see when rows are not kept apart: otherwise it would pass anything."""
EFFICIENCY_BOUND = 0.98
OVER_TRL = {"none": 0.97, "stream": 1.0}
"""Rows one by one against TRL's one by one, packed ones against whatever TRL is fastest with."""
SAME_WORK_BOUND = 1e-3
"""Losses of TRL's trainer and ours on the same rows: if they differ more, they were not given the same work."""
COMPILED_BOUND = 1e-5
STREAM_OVER_NONE = 1.0
OVER_SEED_RECIPE = 4.0
GRADIENT_BOUND = 1e-4

EXACT_MODELS = {"llama": "random://tiny_llama@0", "gemma4": "random://tiny_gemma4@0"}
SPEED_MODEL = "random://small_llama@0"
"""Large enough that matrix products decide the time; its rotary base is the one that a stock Tunix model computes with."""


def verify_packing(spec: ExperimentSpec, folder: Path, console: Console, sizes: SpeedSizes | None = None) -> CheckResult:
    """Measure each backend in a process of its own."""
    cache = cache_folder(spec)
    request = {
        "cache": str(cache),
        "exact_models": {family: str(fetch_model(ModelSpec(family, weights), cache).path) for family, weights in EXACT_MODELS.items()},
        "speed_model": str(fetch_model(ModelSpec("llama", SPEED_MODEL), cache).path),
        "sizes": asdict(sizes or SpeedSizes()),
    }
    measured: dict[str, Any] = {}
    for backend in BACKENDS:
        with console.stage(f"packing on {backend}") as stage:
            measured[backend] = measure(
                f"train/{backend}",
                f"{__package__}.worker",
                {**request, "backend": backend, "scratch": str(folder / "trl")},
                folder / f"{backend}.log",
                stage,
                {"TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled")},
            )
    return judge_packing(measured, {"speed_model": SPEED_MODEL, "sizes": request["sizes"]})


def judge_packing(measured: Mapping[str, Any], settings: Mapping[str, Any]) -> CheckResult:
    """Hold what the processes measured against the bounds."""
    limits = []
    for backend, results in measured.items():
        exact, speed = results["exact"].values(), results["speed"]
        limits += [
            Limit(f"{backend}.token_loss_difference", max(one["difference"] for one in exact), TOKEN_BOUND),
            Limit(f"{backend}.seen_when_rows_mix", min(one["difference_when_rows_mix"] for one in exact), MIXED_BOUND, at_least=True),
            Limit(f"{backend}.stream_over_none", speed["over_none"]["stream"]["median"], STREAM_OVER_NONE, at_least=True),
            Limit(f"{backend}.stream_efficiency", speed["packing_efficiency"]["stream"], EFFICIENCY_BOUND, at_least=True),
        ]
    torch, jax = measured["torch"]["speed"], measured["jax"]["speed"]
    limits += [
        *(Limit(f"torch.{mode}_over_trl", torch["over_trl"][mode]["median"], bound, at_least=True) for mode, bound in OVER_TRL.items()),
        Limit("torch.compiled_loss_difference", measured["torch"]["compiled"]["loss_difference"], COMPILED_BOUND),
        Limit("torch.loss_difference_to_trl", torch["loss_difference"], SAME_WORK_BOUND),
        Limit("jax.stream_over_seed_recipe", jax["over_seed_recipe"]["stream"]["median"], OVER_SEED_RECIPE, at_least=True),
        Limit("jax.gradient_difference_to_seed_recipe", jax["gradient_difference"], GRADIENT_BOUND),
    ]
    return CheckResult("packing", tuple(limits), {**settings, **measured})
