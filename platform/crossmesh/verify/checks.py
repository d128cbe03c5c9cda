"""The checks by name. Each is a function of the spec, a folder for its files and the console that shows its progress."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from crossmesh.console import Console
from crossmesh.errors import require_choice
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.spec.training import ModelSpec
from crossmesh.verify.result import CheckResult

Check = Callable[[ExperimentSpec, Path, Console], CheckResult]

UNSAID = ModelSpec("llama", "random://tiny_llama@0")
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
"""Each is `verify_<name>` in the file of its name."""


def find_check(name: str) -> Check:
    """Return the check called `name`; `InputError` with the list of all when there is none."""
    require_choice("check", name, CHECKS)
    check: Check = getattr(import_module(f"crossmesh.verify.{name}"), f"verify_{name}")
    return check
