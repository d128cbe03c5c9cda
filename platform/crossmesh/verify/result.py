"""What a check says of itself: bounds, the worst values measured against them, the verdict and the figures behind it.

Values only; how they were measured is each check's, and nothing here decides what a check's bounds are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True)
class Limit:
    """One bound and the worst value found against it."""

    name: str
    worst: float
    bound: float
    at_least: bool = False
    """Whether values must reach the bound; otherwise they must not exceed it."""

    @property
    def passed(self) -> bool:
        """Whether the worst value keeps the bound; a value that is not a number does not."""
        return self.worst >= self.bound if self.at_least else self.worst <= self.bound


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check."""

    check: str
    limits: tuple[Limit, ...]
    """What decides. At least one: a check that cannot fail proves nothing."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """What was measured, nested as the check likes; JSON values."""
    source: str = "measured"

    def __post_init__(self) -> None:
        """Refuse a check without a bound, and two bounds of one name."""
        names = [limit.name for limit in self.limits]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"check {self.check!r} needs one or more bounds of different names, not {names}")

    @property
    def passed(self) -> bool:
        """Whether every bound is kept."""
        return all(limit.passed for limit in self.limits)

    @property
    def bound(self) -> dict[str, dict[str, float]]:
        """The bounds by name: `{"at_most": 0.001}` or `{"at_least": 3.0}`."""
        return {limit.name: {"at_least" if limit.at_least else "at_most": limit.bound} for limit in self.limits}

    @property
    def worst(self) -> dict[str, float]:
        """The worst value found, by the name of its bound."""
        return {limit.name: limit.worst for limit in self.limits}

    def record(self) -> dict[str, Any]:
        """The result as one JSON object; a number that JSON cannot write becomes its name."""
        keys = ("check", "passed", "bound", "worst", "source")
        record: dict[str, Any] = _plain({**{key: getattr(self, key) for key in keys}, "figures": self.figures})
        return record

    def show(self, console: Console) -> None:
        """Print the verdict of each bound, then the figures."""
        verdicts = Table(title=f"{self.check}: {'passed' if self.passed else 'NOT PASSED'}", title_justify="left")
        for heading in ("bound", "worst", "allowed", "verdict"):
            verdicts.add_column(heading)
        for limit in self.limits:
            allowed = f"{'at least' if limit.at_least else 'at most'} {limit.bound:g}"
            verdicts.add_row(escape(limit.name), f"{limit.worst:.4g}", allowed, "passed" if limit.passed else "NOT PASSED")
        console.print(verdicts)
        figures = Table(title=f"figures ({self.source})", title_justify="left", show_header=False)
        for name, value in _leaves(self.figures):
            figures.add_row(escape(name), escape(value))
        console.print(figures)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _leaves(figures: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Figures by dotted name, as text; counts of one thing by kind share a line."""
    found: list[tuple[str, str]] = []
    for name, value in figures.items():
        if isinstance(value, Mapping) and not all(isinstance(part, int) for part in value.values()):
            found += _leaves(value, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", _text(value)))
    return found


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {part}" for name, part in value.items()) or "none"
    if isinstance(value, list | tuple):
        return " ".join(f"{part:.2g}" if isinstance(part, float) else str(part) for part in value)
    return str(value)
