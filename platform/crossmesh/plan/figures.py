"""Figures of a training step, and which source each of them is from: this room's model, and a compiler or a trace where one has answered.

Memory is the compiler's where it is known. Time stays the model's, which knows what a static estimate does not, but is never below the
compiler's. Compiles nothing itself: an answer comes from a `compilers.Compiler`.
"""

from dataclasses import dataclass, replace

from crossmesh.plan.point import TrainingPoint
from crossmesh.plan.training.efficiency import efficiency
from crossmesh.plan.training.memory import training_memory
from crossmesh.plan.training.roofline import layers_flops, loss_head_flops, lower_bound_s, phases

MODELLED, COMPILED = "modelled", "compiled"


@dataclass(frozen=True)
class Compiled:
    """What a compiler, or a trace of the step without a device, says of one micro-batch of full length on one chip."""

    by: str
    """Of which versions: `libtpu 0.0.42.1, jax 0.10.2` or `torch 2.13.0, fake tensors`."""
    hbm_bytes: float
    """At the peak."""
    memory: dict[str, float]
    """The same by kind, as far as kinds are told apart."""
    flops: float | None
    bytes: float | None
    """Memory traffic."""
    seconds: float | None
    """The compiler's static estimate: a lower bound."""
    extrapolated: bool
    """From two small depths."""
    warnings: tuple[str, ...] = ()
    """Say, that the stored figures are stale."""


@dataclass(frozen=True)
class CompilerAgreement:
    """The model's figure over the compiler's, of one micro-batch on one chip; None where the compiler has none."""

    memory: float | None
    flops: float | None
    seconds: float | None


@dataclass(frozen=True)
class Figures:
    """Memory and time of one optimizer step."""

    hbm_bytes: float
    """Per chip, at the peak."""
    hbm_source: str
    """`compiled`, `modelled`, `published` or `measured`."""
    memory: dict[str, float]
    """The same by kind, as far as the source tells kinds apart."""
    step_s: float
    step_source: str
    phases: dict[str, float]
    """Seconds by phase: the model's, without the factor."""
    limiter: str
    """The longest phase."""
    bound_s: float
    """Physical lower bound of a step."""
    factor: float = 1.0
    """In `step_s` over the model's seconds: what own runs measured (`calibration.py`)."""
    compiled: Compiled | None = None
    agreement: CompilerAgreement | None = None


def modelled(point: TrainingPoint) -> Figures:
    """Figures of this room's own model."""
    memory, timed = training_memory(point), phases(point, efficiency(point.slice.device))
    bound = lower_bound_s(point)
    return Figures(memory.total, MODELLED, memory.kinds, timed.total, MODELLED, timed.seconds, timed.limiter, bound)


def figures(point: TrainingPoint, compiled: Compiled | None = None, factor: float = 1.0) -> Figures:
    """The model's figures, its time multiplied by `factor`; where there is a compiler's answer, its memory, and its time as the least."""
    own = modelled(point)
    if compiled is None:
        return replace(own, step_s=own.step_s * factor, factor=factor)
    # It was asked about a micro-batch of full length.
    full_s = modelled(point.at_full_length).step_s
    least = (compiled.seconds or 0.0) * point.micro_steps * own.step_s / full_s
    bounded = least > own.step_s * factor
    return replace(
        own,
        hbm_bytes=compiled.hbm_bytes,
        hbm_source=COMPILED,
        memory=compiled.memory,
        step_s=least if bounded else own.step_s * factor,
        step_source=COMPILED if bounded else MODELLED,
        factor=1.0 if bounded else factor,
        compiled=compiled,
        agreement=_agreement(point, own, full_s, compiled),
    )


def micro_flops(point: TrainingPoint) -> float:
    """The model's FLOP of one micro-batch of full length on one chip."""
    return layers_flops(point) + loss_head_flops(point) / point.micro_steps


def _agreement(point: TrainingPoint, own: Figures, full_s: float, compiled: Compiled) -> CompilerAgreement:
    return CompilerAgreement(
        own.hbm_bytes / compiled.hbm_bytes if compiled.hbm_bytes else None,
        micro_flops(point) / compiled.flops if compiled.flops else None,
        full_s / point.micro_steps / compiled.seconds if compiled.seconds else None,
    )
