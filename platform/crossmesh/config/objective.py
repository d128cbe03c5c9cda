"""The group of an experiment that says what a training minimizes."""

from dataclasses import dataclass, field
from typing import Any

from crossmesh.plugins import Registry

OBJECTIVES = Registry[Any]("crossmesh.objectives", "objective", {"sft": "crossmesh.objectives.sft:Sft"})
"""Subclasses of `crossmesh.objectives.objective.Objective`, by the name that `objective.name` gives."""


@dataclass(frozen=True)
class ObjectiveSpec:
    """What is minimized, and its options."""

    name: str = "sft"
    """`sft`: the mean negative log-likelihood of the assistant's tokens; or an objective of an installed package."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the objective, by name: `{coefficient: 0.1}`; `sft` has none."""

    def __post_init__(self) -> None:
        """Check the name."""
        OBJECTIVES.require("objective.name", self.name)
