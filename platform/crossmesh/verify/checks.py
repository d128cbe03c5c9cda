"""The checks by name. Each is a function of the spec, a folder for its files and the console that shows its progress."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import ModelSpec
from crossmesh.console import Console
from crossmesh.errors import require, require_choice
from crossmesh.verify.result import CheckResult

Check = Callable[[ExperimentSpec, Path, Console], CheckResult]

PLACEHOLDER_MODEL = ModelSpec("llama", "random://tiny_llama@0")
"""What `conf/experiment/verify.yaml` gives, when the command line names neither model nor experiment: a check then takes its own models."""

CHECKS = (
    "training_parity",
    "packing",
    "loss_head",
    "train_overhead",
    "resume",
    "exchange",
    "adapters",
    "plan_depths",
    "compare_speed",
    "sweep_overhead",
    "unlike",
)
"""Each is `verify_<name>` in `check.py` of the folder of its name."""
_FOLDERS = {"training_parity": "parity", "train_overhead": "overhead"}


_OF_RUNS = ("compare_speed",)
"""Checks whose number of runs can be given."""


def find_check(name: str, runs: int = 0) -> Check:
    """Return the check called `name`, with `runs` runs where they are given and can be; `InputError` otherwise."""
    require_choice("check", name, CHECKS)
    require(runs >= 0 and runs != 1, "runs", runs, "two or more, or 0 for the check's own number")
    require(not runs or name in _OF_RUNS, "runs", runs, f"0 with check={name}; {', '.join(_OF_RUNS)} takes a number of runs")
    check: Any = getattr(import_module(f"crossmesh.verify.{_FOLDERS.get(name, name)}.check"), f"verify_{name}")
    return cast("Check", partial(check, runs=runs) if runs else check)
