"""Where a sweep stands: its points, what each has cost, and the file that says so to whoever asks, from any host.

Plain values; who changes them is `driver.py`, what follows from them is `policy.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from crossmesh.config.sweep import labels_of
from crossmesh.files import canonical_json, digest_text, read_json, write_json

WAITING, RUNNING = "waiting", "running"
DONE, SKIPPED, STOPPED, REJECTED, FAILED = "done", "skipped", "stopped", "rejected", "failed"
EARLY = "early"
"""Stopped because others were ahead of it at the same step; for good."""
STATES = (RUNNING, WAITING, DONE, SKIPPED, EARLY, STOPPED, REJECTED, FAILED)

_FILE = "state.json"
_HOUR = 3600.0
_OF_THE_START = ("output", "force", "sweep.", "tune.samples")
"""Keys that say how a sweep is run, not which: with others the same sweep continues."""


@dataclass(frozen=True)
class Point:
    """One point of a sweep."""

    key: str
    """Digest of what the command line says for it."""
    label: str
    """The overrides that set it apart."""
    overrides: tuple[str, ...] = ()
    """All that the command line says for it; of a search, what it adds to that."""
    state: str = WAITING
    stage: str = ""
    """What it does now, or did last."""
    step: int = 0
    steps: int = 0
    loss: float | None = None
    tokens_per_s: float | None = None
    left_s: float | None = None
    """How long the steps that are left will take."""
    seconds: float = 0.0
    """How long it ran, in all starts of the sweep; while it only waited for another job, nothing."""
    usd_per_hour: float | None = None
    """What its hardware costs, all slices together."""
    emulated: bool = False
    """Whether it ran on CPU devices under the name of other hardware: without a price, and its rate says nothing of that hardware."""
    tries: int = 0
    """How often it was started and failed."""
    diverged: bool = False
    run_id: str = ""
    """Id of the run."""
    reason: str = ""
    """Why it was rejected, stopped, or failed."""
    exit_code: int = 0
    """Of a job that had been this point alone."""

    @property
    def usd(self) -> float | None:
        """What it cost so far; None without a price."""
        return None if self.usd_per_hour is None else self.usd_per_hour * self.seconds / _HOUR

    def again(self) -> "Point":
        """It waits to be started anew; what it cost and how often it failed stays."""
        return replace(self, state=WAITING, stage="", step=0, steps=0, left_s=None, reason="", exit_code=0, diverged=False)


@dataclass(frozen=True)
class Spent:
    """What a sweep has cost."""

    usd: float
    hours: float
    """The sum of the times that its points ran."""


@dataclass(frozen=True)
class SweepState:
    """A sweep."""

    identity: str
    verb: str
    """Of the job: `finetune`, `benchmark`."""
    name: str
    """Of the experiment."""
    command: str
    run_id: str = ""
    """Id of the run."""
    starts: int = 0
    """How often its command was started."""
    over: str = ""
    """Why no more is started; empty while something may be."""
    at: float = 0.0
    """When this was written, in seconds since 1970."""
    max_usd: float = 0.0
    max_hours: float = 0.0
    points: tuple[Point, ...] = field(default=())

    @property
    def spent(self) -> Spent:
        """What its points have cost in all starts."""
        return Spent(sum(point.usd or 0.0 for point in self.points), sum(point.seconds for point in self.points) / _HOUR)

    def counts(self) -> dict[str, int]:
        """How many points are in which state, in the order of `STATES`; states that none has are left out."""
        found = {state: sum(point.state == state for point in self.points) for state in STATES}
        return {state: count for state, count in found.items() if count}

    def json(self) -> dict[str, Any]:
        """As a JSON value; `state_of` reads it."""
        return asdict(self)


def state_of(values: Mapping[str, Any]) -> SweepState:
    """The state that `SweepState.json` made these values of. Raises `TypeError` or `KeyError` for others."""
    points = tuple(Point(**{**point, "overrides": tuple(point["overrides"])}) for point in values["points"])
    return SweepState(**{**values, "points": points})


def identity_of(verb: str, overrides: Sequence[tuple[str, ...]]) -> str:
    """What a sweep is: the job and what the command line says for each point, in any order."""
    return digest_text(canonical_json([verb, sorted(own_overrides(one) for one in overrides)]))


def own_overrides(overrides: Sequence[str]) -> list[str]:
    """What of a point's command line says what it is."""
    return sorted(one for one in overrides if not any(_names(key, one) for key in _OF_THE_START))


def _names(key: str, override: str) -> bool:
    given = override.lstrip("+~").partition("=")[0]
    return given.startswith(key) if key.endswith(".") else given == key


def new_points(overrides: Sequence[tuple[str, ...]]) -> tuple[Point, ...]:
    """The points of a sweep before anything of it was done."""
    labels = labels_of(overrides)
    keys = [digest_text(canonical_json(own_overrides(own)))[:16] for own in overrides]
    return tuple(Point(key, " ".join(label), own) for key, label, own in zip(keys, labels, overrides, strict=True))


def sweeps_folder(root: Path) -> Path:
    """Where sweeps are kept under `storage.root`."""
    return root / "sweeps"


def write_state(folder: Path, state: SweepState) -> None:
    """Replace the state of the sweep that `folder` is of, atomically."""
    write_json(folder / _FILE, state.json())


def read_state(folder: Path) -> SweepState | None:
    """The state of the sweep that `folder` is of; None when there is none that can be read."""
    try:
        return state_of(read_json(folder / _FILE))
    except (OSError, ValueError, TypeError, KeyError):
        return None
