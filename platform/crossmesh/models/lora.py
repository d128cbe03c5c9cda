"""What LoRA is on each linear projection: rank, alpha and scale, resolved once for both backends.

PEFT's rules: a pattern is a regular expression for the end of a module's name, the first that fits counts, and its value takes the place
of the adapter's own. Pure values; where the arrays come from is `adapters/`.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from crossmesh.config.training import LoraSpec
from crossmesh.errors import InputError
from crossmesh.models.architecture import Architecture
from crossmesh.models.targets import Target, expand_targets

Value = TypeVar("Value")


@dataclass(frozen=True)
class LoraModule:
    """The adapter of one projection."""

    target: Target
    rank: int
    alpha: float
    stabilised: bool = False
    """Rank-stabilised (https://arxiv.org/abs/2312.03732)."""

    @property
    def scale(self) -> float:
        """The change of the weight is `scale * B @ A`."""
        return lora_scale(self.rank, self.alpha, self.stabilised)


def lora_scale(rank: int, alpha: float, stabilised: bool) -> float:
    """Return alpha / rank, or alpha / sqrt(rank) when rank-stabilised, with PEFT's very operations (`LoraLayer.update_layer`)."""
    return alpha / math.sqrt(rank) if stabilised else alpha / rank


def lora_modules(lora: LoraSpec, architecture: Architecture) -> tuple[LoraModule, ...]:
    """Resolve `lora` on a model; empty where all weights are trained.

    Raises `InputError` when no projection is named, or when a pattern fits none that is adapted.
    """
    if lora.full:
        return ()
    targets = expand_targets(architecture, lora.targets)
    names = [target.hf for target in targets]
    for key, pattern in (("rank_pattern", lora.rank_pattern), ("alpha_pattern", lora.alpha_pattern)):
        for expression in pattern:
            if not any(_fits(expression, name) for name in names):
                raise InputError(
                    f"lora.{key} names {expression!r}, which fits no adapted module of this model. Allowed: the end of a module's name, or "
                    f"a regular expression for it, e.g. {names[0].rpartition('.')[2]} or {names[0]}."
                )
    ranks, alphas = by_pattern(lora.rank_pattern, names), by_pattern(lora.alpha_pattern, names)
    return tuple(
        LoraModule(target, ranks.get(target.hf, lora.rank), alphas.get(target.hf, lora.alpha), lora.use_rslora) for target in targets
    )


def by_pattern(pattern: Mapping[str, Value], modules: Sequence[str]) -> dict[str, Value]:
    """The value of each module that a pattern names: the first that fits counts (`get_pattern_key` of peft/utils/other.py)."""
    found = {}
    for module in modules:
        for expression, value in pattern.items():
            if _fits(expression, module):
                found[module] = value
                break
    return found


def targets_of(modules: Iterable[LoraModule]) -> tuple[Target, ...]:
    """The projections alone."""
    return tuple(module.target for module in modules)


def largest_rank(modules: Iterable[LoraModule]) -> int:
    """The largest rank of any module; 0 where there is no adapter."""
    return max((module.rank for module in modules), default=0)


def _fits(expression: str, module: str) -> bool:
    return re.match(rf"(.*\.)?({expression})$", module) is not None
