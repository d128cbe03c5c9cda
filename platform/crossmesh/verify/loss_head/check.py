"""The loss head against Tunix's own and against plain cross-entropy: memory, time, and the same gradients.

Vocabulary and share of loss rows are those of the seed's recipe. What is compared is value and gradient with respect to the hidden
states, of the same arrays; the decoder below is not part of it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.console import Console
from crossmesh.verify.process import measure
from crossmesh.verify.result import CheckResult, Limit

BYTES_BOUND = 1 / 30
TIME_BOUND = 0.4
GRADIENT_BOUND = 1e-5


@dataclass(frozen=True)
class HeadSizes:
    """What the heads are measured on; the defaults are the check's."""

    vocab: int = 262_144
    hidden: int = 512
    """Narrower than the 31B's 5,376, so that logits and what is done to them, not the product that makes them, decide memory and time."""
    memory_rows: int = 8192
    time_rows: int = 1024
    loss_share: float = 0.15
    softcap: float = 30.0
    rounds: int = 7


def verify_loss_head(spec: ExperimentSpec, folder: Path, console: Console, sizes: HeadSizes | None = None) -> CheckResult:
    """Measure the heads of both backends in a process each; the JAX head is judged, the torch head is reported."""
    del spec  # Sizes are the check's own.
    request = asdict(sizes or HeadSizes())
    with console.stage("JAX: our loss head and tunix.sft.peft_trainer._default_loss_fn") as stage:
        jax = measure("train/jax", f"{__package__}.measure_jax", request, folder / "jax.log", stage)
    with console.stage("torch: our loss head and cross_entropy over all logits") as stage:
        torch = measure("train/torch", f"{__package__}.measure_torch", request, folder / "torch.log", stage)
    return judge_loss_head(jax, {"sizes": request, "jax": jax, "torch": torch})


def judge_loss_head(jax: Mapping[str, Any], figures: Mapping[str, Any]) -> CheckResult:
    """Hold what was measured on JAX against the bounds."""
    limits = (
        Limit("temporary_bytes_ratio", jax["temporary_bytes"]["ours"] / jax["temporary_bytes"]["tunix"], BYTES_BOUND),
        Limit("time_ratio", jax["time_ratio"]["median"], TIME_BOUND),
        Limit("gradient_difference", jax["gradient_difference"], GRADIENT_BOUND),
        Limit("loss_difference", jax["loss_difference"], GRADIENT_BOUND),
    )
    return CheckResult("loss_head", limits, figures)
