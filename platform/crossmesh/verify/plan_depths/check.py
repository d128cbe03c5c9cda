"""Whether a deep model's compiled figures may be put together from two small depths: against a compilation of the whole model.

What compiles is `plan/compilers/compiled.py`; here is only what is compared, and the bounds.
"""

from dataclasses import asdict
from pathlib import Path

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.console import Console
from crossmesh.errors import InputError
from crossmesh.plan.compilers.compiled import TpuCompiler
from crossmesh.plan.figures import Compiled
from crossmesh.plan.point import training_point
from crossmesh.plan.store.store import AnswerStore
from crossmesh.verify.result import CheckResult, Limit

MEMORY_BOUND = 0.03
TIME_BOUND = 0.05


def verify_plan_depths(spec: ExperimentSpec, folder: Path, console: Console) -> CheckResult:
    """Compile the step of `spec` at small depths and whole, where there is no answer yet."""
    del folder  # Answers are kept with those of plans.
    point = training_point(spec)
    compiler = TpuCompiler(AnswerStore(spec.storage.path / "cache" / "plan", spec.plan.answers), console)
    if not compiler.serves(point):
        raise InputError(f"hardware={spec.hardware.name} with backend={point.backend} is not compiled ahead of time. Give a TPU and jax.")
    small = compiler.compile(point)
    if not small.extrapolated:
        layers = len(point.model.architecture.layers)
        raise InputError(
            f"model.weights={spec.model.weights!r} has {layers} layers, too few to be put together from smaller depths. "
            "Give a deeper model, e.g. experiment=gemma4_31b_codev_v5p8_tp4."
        )
    return judge_plan_depths(small, compiler.compile(point, whole=True))


def judge_plan_depths(small: Compiled, whole: Compiled) -> CheckResult:
    """Hold what the depths say against the whole; XLA has no time for a program that needs more memory than there is."""
    limits = [Limit("memory_difference", abs(small.hbm_bytes / whole.hbm_bytes - 1), MEMORY_BOUND)]
    for name in ("seconds", "flops"):
        ours, theirs = getattr(small, name), getattr(whole, name)
        if ours and theirs:
            limits.append(Limit(f"{name}_difference", abs(ours / theirs - 1), TIME_BOUND))
    return CheckResult("plan_depths", tuple(limits), {"from_depths": asdict(small), "whole": asdict(whole)}, source="compiled")
