"""What a sweep runs at each of its points: a training run, or whatever else has a gate, a price and a run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.plan.planner import Planner
from crossmesh.sweep.policy import Need
from crossmesh.track.tracker import Tracker
from crossmesh.train.events import OnEvent


@dataclass(frozen=True)
class Hooks:
    """How a point speaks with its sweep."""

    on_event: OnEvent
    """Hears a `StartEvent` when what it runs on is to be paid for, then stages and steps."""
    check: Callable[[], None]
    """Called several times a second; raises when the point is to stop with what it has."""
    parent: str
    """Id of the sweep's run."""
    force: bool
    """Do it again although it is done."""


@dataclass(frozen=True)
class Ran:
    """A point that is done."""

    run_id: str
    skipped: bool
    """Whether it was found done."""
    steps: int = 0
    loss: float | None = None
    """Of the last step."""
    tokens_per_s: float | None = None
    """Once it was steady."""


class Workload(Protocol):
    """What is done at a point."""

    @property
    def live(self) -> bool:
        """Whether all that it says comes through `Hooks.on_event`, so that a live table can show it, and several may run at once."""

    def gate(self, spec: ExperimentSpec, planner: Planner) -> None:
        """Raise `RejectedError` or `InputError` for a point that cannot work; starts nothing."""

    def need(self, spec: ExperimentSpec) -> Need:
        """What it needs to itself while it runs."""

    def usd_per_hour(self, spec: ExperimentSpec) -> float | None:
        """What that costs, by the catalogue; None without a price."""

    def run(self, spec: ExperimentSpec, tracker: Tracker, hooks: Hooks) -> Ran:
        """Do it, or find it done, in the Ray session that is open."""


def usd_per_hour(spec: ExperimentSpec, slices: int) -> float | None:
    """Price of `slices` of the spec's hardware; None without one, and where it is emulated."""
    price = spec.hardware.price(spec.plan.price, spec.plan.region)
    return price.usd_per_hour * slices if price else None
