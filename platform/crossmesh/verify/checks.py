"""The checks by name. Each is a function of the spec, a folder for its files and the console that shows its progress."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import ModelSpec
from crossmesh.console import Console
from crossmesh.errors import require, require_choice
from crossmesh.plugins import Registry
from crossmesh.verify.result import CheckResult

Check = Callable[[ExperimentSpec, Path, Console], CheckResult]

PLACEHOLDER_MODEL = ModelSpec("llama", "random://tiny_llama@0")
"""What `conf/experiment/verify.yaml` gives, when the command line names neither model nor experiment: a check then takes its own models."""

CHECKS = Registry[Check](
    "crossmesh.checks",
    "check",
    {
        "training_parity": "crossmesh.verify.parity.check:verify_training_parity",
        "packing": "crossmesh.verify.packing.check:verify_packing",
        "loss_head": "crossmesh.verify.loss_head.check:verify_loss_head",
        "train_overhead": "crossmesh.verify.overhead.check:verify_train_overhead",
        "resume": "crossmesh.verify.resume.check:verify_resume",
        "exchange": "crossmesh.verify.exchange.check:verify_exchange",
        "adapters": "crossmesh.verify.adapters.check:verify_adapters",
        "plan_depths": "crossmesh.verify.plan_depths.check:verify_plan_depths",
        "compare_speed": "crossmesh.verify.compare_speed.check:verify_compare_speed",
        "sweep_overhead": "crossmesh.verify.sweep_overhead.check:verify_sweep_overhead",
        "unlike": "crossmesh.verify.unlike.check:verify_unlike",
    },
)
"""All checks; an installed package adds its own."""

_OF_RUNS = ("compare_speed",)
"""Checks whose number of runs can be given."""


def find_check(name: str, runs: int = 0) -> Check:
    """Return the check called `name`, with `runs` runs where they are given and can be; `InputError` otherwise."""
    require_choice("check", name, CHECKS.names)
    require(runs >= 0 and runs != 1, "runs", runs, "two or more, or 0 for the check's own number")
    require(not runs or name in _OF_RUNS, "runs", runs, f"0 with check={name}; {', '.join(_OF_RUNS)} takes a number of runs")
    check: Any = CHECKS.load(name)
    return cast("Check", partial(check, runs=runs) if runs else check)
