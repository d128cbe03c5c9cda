"""The group of an experiment that says from which size on a difference matters, whatever its interval."""

from dataclasses import dataclass, fields

from crossmesh.errors import require


@dataclass(frozen=True)
class MattersSpec:
    """The smallest differences that matter; below them two results are equal. No part of any run's identity."""

    loss: float = 0.001
    """Nats per loss token."""
    pass_at_k: float = 1.0
    """Percentage points."""
    speed: float = 2.0
    """Percent, of times, rates and latencies."""
    usd: float = 2.0
    """Percent, of costs."""

    def __post_init__(self) -> None:
        """Check the sizes."""
        for one in fields(self):
            require(getattr(self, one.name) >= 0, f"matters.{one.name}", getattr(self, one.name), "0 or a positive number")
