"""Where a sweep stands, for whoever asks: from the storage where it can be reached, else as it is tracked, half a minute old."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from rich.console import Console as RichConsole
from rich.live import Live

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec
from crossmesh.errors import InputError
from crossmesh.sweep.driver import LEASE
from crossmesh.sweep.runs import tracked_state
from crossmesh.sweep.state import RUNNING, STOPPED, WAITING, SweepState, read_state, sweeps_folder
from crossmesh.sweep.view import last_table, live_table, written_at
from crossmesh.track.trackers import open_tracker
from crossmesh.trial.lease import owner

_SILENT_S = 90.0
"""A driver that has said nothing for so long is taken for dead."""
_FOLLOW_S = 2.0


@dataclass(frozen=True)
class SweepStatus:
    """A sweep as it stands."""

    state: SweepState
    alive: bool
    """Whether its driver was heard of just now."""
    source: str
    """Where this was read."""

    @property
    def note(self) -> str:
        """How far it can be trusted."""
        if self.alive:
            return f"It runs; written {written_at(self.state)}, read from {self.source}."
        left = sum(point.state in (STOPPED, WAITING) for point in self.state.points)
        again = f" Its command continues it: {self.state.command}" if left else ""
        return f"Its driver does not run; written {written_at(self.state)}, read from {self.source}.{again}"


def sweep_status(spec: ExperimentSpec, prefix: str) -> SweepStatus:
    """The sweep whose run id begins with `prefix`; with an empty one that which was heard of last.

    Raises `InputError` when there is none, or several.
    """
    found = _stored(spec.storage, prefix)
    if found is not None:
        return found
    tracker = open_tracker(spec.tracking, spec.storage)
    run, state = tracked_state(tracker, prefix)
    return _status_at(state, run.status == "RUNNING" and time.time() - state.at < _SILENT_S, tracker.uri)


def follow(read: Callable[[], SweepStatus]) -> SweepStatus:
    """Show a sweep on the terminal until its driver ends; return how it stood last."""
    now = read()
    with Live(console=RichConsole(stderr=True, highlight=False), auto_refresh=False, transient=True) as live:
        while now.alive:
            live.update(live_table(now.state), refresh=True)
            time.sleep(_FOLLOW_S)
            now = read()
    return now


def show(now: SweepStatus, console: RichConsole) -> None:
    """Print where it stands."""
    console.print(live_table(now.state) if now.alive else last_table(now.state))
    console.print(now.note, soft_wrap=True)


def _stored(storage: StorageSpec, prefix: str) -> SweepStatus | None:
    states = [(folder, read_state(folder)) for folder in sweeps_folder(storage.path).glob("*")]
    found = [(folder, state) for folder, state in states if state is not None and state.run_id.startswith(prefix)]
    if not found:
        return None
    if prefix and len(found) > 1:
        raise InputError(f"sweep={prefix!r} begins the ids of {len(found)} sweeps: {', '.join(state.run_id for _, state in found)}.")
    folder, state = max(found, key=lambda one: one[1].at)
    said = owner(folder / LEASE)
    alive = said is not None and not said["released"] and time.time() - float(said["at"]) < _SILENT_S
    return _status_at(state, alive, str(folder))


def _status_at(state: SweepState, alive: bool, source: str) -> SweepStatus:
    """Points that ran when their driver died do not run any more."""
    if alive:
        return SweepStatus(state, alive, source)
    points = tuple(
        replace(point, state=STOPPED, reason="its driver ended while it ran") if point.state == RUNNING else point for point in state.points
    )
    return SweepStatus(replace(state, points=points), alive, source)
