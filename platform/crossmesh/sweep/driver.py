"""Runs a sweep: every point past the gate, then as many at a time as there is room for, within the budget, to a table of all of them.

Killed at any moment, the same command continues: what is done is found done, what was interrupted goes on from its checkpoint, what failed
is tried again as `policy.py` says. What a point is, is its `Workload`'s.
"""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import ray
from rich.console import Console as RichConsole

from crossmesh.cluster import ray_session
from crossmesh.console import Console
from crossmesh.errors import BudgetReachedError, InputError, RejectedError
from crossmesh.plan.planner import own_planner
from crossmesh.spec.compose import Job, SweptJob
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.spec.sweep import SweepKeys, SweepSpec
from crossmesh.sweep.lease import Lease, leased
from crossmesh.sweep.policy import Need, exit_code, over_budget, startable, try_again
from crossmesh.sweep.running import RunningPoint
from crossmesh.sweep.runs import SweepRun, as_result
from crossmesh.sweep.state import (
    DONE,
    FAILED,
    REJECTED,
    RUNNING,
    SKIPPED,
    STOPPED,
    WAITING,
    Point,
    SweepState,
    identity_of,
    new_points,
    read_state,
    sweeps_folder,
    write_state,
)
from crossmesh.sweep.view import SweepView, last_table
from crossmesh.sweep.work import Workload
from crossmesh.track.tracker import Tracker

_Keys = TypeVar("_Keys", bound=SweepKeys)

_POLL_S = 0.5
_WRITE_S = 2.0
"""State on disk is at most so old: what a killed driver has spent since is not counted."""
_TRACK_S = 30.0
"""The same for MLflow."""
_ON_RAY = "ray"
LEASE = "lease"
"""Folder of the lease beside the state of a sweep."""


@dataclass(frozen=True)
class Request:
    """A sweep as it was asked for."""

    verb: str
    specs: tuple[ExperimentSpec | InputError, ...]
    """Of each point, or why it cannot be."""
    overrides: tuple[tuple[str, ...], ...]
    limits: SweepSpec
    output: str
    on_ray: bool
    """Several points at once."""
    force: bool

    @property
    def first(self) -> ExperimentSpec:
        """The spec of the first point that can be: where all are stored and tracked."""
        return next(spec for spec in self.specs if isinstance(spec, ExperimentSpec))


def request_of(verb: str, swept: Sequence[SweptJob[_Keys]], force: Callable[[_Keys], bool]) -> Request:
    """Make one request of the points that Hydra composed.

    Raises `InputError` when none can be, when they are stored or tracked in several places, or when a budget cannot be counted.
    """
    jobs = [one.job for one in swept]
    valid = [job for job in jobs if isinstance(job, Job)]
    if not valid:
        reasons = list(dict.fromkeys(str(job) for job in jobs))
        raise InputError(f"No point of the sweep is possible. {' '.join(reasons[:3])}")
    places = {(job.spec.storage, job.spec.tracking) for job in valid}
    if len(places) > 1 or len({job.keys.sweep for job in valid}) > 1:
        raise InputError("storage, tracking and sweep.* are those of the whole sweep. Give each of their keys one value.")
    keys = valid[0].keys
    specs = tuple(job.spec if isinstance(job, Job) else job for job in jobs)
    if any(other.launcher not in ("basic", _ON_RAY) for other in swept):
        raise InputError(f"hydra/launcher={swept[0].launcher!r} is not possible here. Allowed: basic (one after another), ray (at once).")
    return Request(verb, specs, tuple(one.overrides for one in swept), keys.sweep, keys.output, swept[0].launcher == _ON_RAY, force(keys))


def run_sweep(request: Request, workload: Workload, command: str) -> None:
    """Run the sweep and end the process with the exit code of its worst point, after a table of all of them."""
    spec, console = request.first, Console()
    if request.on_ray and not workload.live:
        raise InputError("hydra/launcher=ray is not possible here: points that share a machine would measure each other. Leave it out.")
    _check_prices(request, workload)
    tracker = Tracker(spec.tracking, spec.storage, console.say)
    identity = identity_of(request.verb, request.overrides)
    folder = sweeps_folder(spec.storage.path) / identity[:16]
    with leased(folder / LEASE, lambda: console.say("another job runs this sweep: waiting for it (Ctrl-C stops waiting)")) as lease:
        sweep = _Sweep(request, workload, tracker, folder, _first_state(request, folder, identity, command), lease)
        state = sweep.run()
    code = exit_code(state.points)
    console.finish(lambda: RichConsole(highlight=False).print(last_table(state)), as_result(state, code), request.output)
    console.say(f"the sweep in MLflow: {state.run_id}; compare its trials: python jobs/compare.py sweep={state.run_id}")
    if code:
        sys.exit(code)


def _check_prices(request: Request, workload: Workload) -> None:
    """Refuse a budget in dollars over hardware without a price."""
    if not request.limits.max_usd:
        return
    for spec in request.specs:
        if isinstance(spec, ExperimentSpec) and workload.usd_per_hour(spec) is None:
            raise InputError(
                f"sweep.max_usd={request.limits.max_usd:g}, but the catalogue has no {spec.plan.price} price of {spec.hardware.name}. "
                "Give yours in hardware.catalogue, or set sweep.max_hours."
            )


def _first_state(request: Request, folder: Path, identity: str, command: str) -> SweepState:
    """The state to begin with: what earlier starts cost and how often points failed is remembered."""
    known = read_state(folder)
    before = {point.key: point for point in known.points} if known else {}
    points = tuple(before.get(point.key, point) for point in new_points(request.overrides))
    if known is None:
        known = SweepState(identity, request.verb, request.first.name, command)
    limits = request.limits
    return replace(
        known, points=points, starts=known.starts + 1, over="", command=command, max_usd=limits.max_usd, max_hours=limits.max_hours
    )


class _Sweep:
    """One start of a sweep."""

    def __init__(self, request: Request, workload: Workload, tracker: Tracker, folder: Path, state: SweepState, lease: Lease) -> None:
        self._request = request
        self._workload = workload
        self._tracker = tracker
        self._folder = folder
        self._state = state
        self._before = state.points
        self._lease = lease
        self._view = SweepView(live=workload.live)
        self._changed = threading.Event()
        self._running: dict[int, RunningPoint] = {}
        self._written = self._tracked = -_TRACK_S

    def run(self) -> SweepState:
        """Run what is left and return where it ended."""
        shared = set.intersection(*(set(one) for one in self._request.overrides))
        run = SweepRun(self._tracker, self._folder, self._state, dict(one.partition("=")[::2] for one in sorted(shared)))
        self._state = replace(self._state, run_id=run.run_id)
        status = "FAILED"
        try:
            self._gate(run)
            self._write(run)
            if any(point.state == WAITING for point in self._state.points):
                with ray_session(self._request.first.storage), self._view.shown():
                    self._work(run)
            failed = any(point.state == FAILED for point in self._state.points)
            status = "KILLED" if self._state.over else "FAILED" if failed else "FINISHED"
        except KeyboardInterrupt:
            status = "KILLED"
            raise
        finally:
            write_state(self._folder, self._state)
            run.finish(self._state, status)
        return self._state

    def _gate(self, run: SweepRun) -> None:
        """Judge every point before anything is started; a point that failed for good stays failed."""
        planner = own_planner(self._request.first, self._tracker)
        for place, spec in enumerate(self._request.specs):
            point = self._state.points[place]
            if point.state == FAILED and not (self._request.force or try_again(point, self._request.limits)):
                self._view.say(f"  {point.label or point.key}: not tried again: {point.reason}")
                continue
            point = point.again()
            try:
                if isinstance(spec, InputError):
                    raise spec
                point = replace(point, usd_per_hour=self._workload.usd_per_hour(spec))
                self._workload.gate(spec, replace(planner, plan=spec.plan))
            except (RejectedError, InputError) as error:
                point = replace(point, state=REJECTED, reason=str(error), exit_code=error.exit_code)
                point = replace(point, run_id=run.rejected(self._state.identity, point))
            self._set(place, point)
        self._view.show(self._state)

    def _work(self, run: SweepRun) -> None:
        """Start points as there is room and money, until none is left."""
        try:
            while True:
                self._lease.check()
                self._collect(run)
                over = over_budget(self._state.spent, self._request.limits)
                if over and not self._state.over and self._unfinished():
                    self._stop_all(over)
                if not self._state.over:
                    self._start_some()
                self._write(run)
                self._view.show(self._state)
                if not self._running:
                    return
                self._changed.wait(_POLL_S)
                self._changed.clear()
        except BaseException:  # Ctrl-C, or a lease that is lost: nothing goes on without its driver.
            for one in self._running.values():
                one.stop(KeyboardInterrupt)
            self._wait_for_all(run)
            raise

    def _unfinished(self) -> bool:
        return any(point.state in (WAITING, RUNNING) for point in self._state.points)

    def _start_some(self) -> None:
        waiting = [place for place, point in enumerate(self._state.points) if point.state == WAITING]
        if not waiting:
            return
        needs = [self._need(place) for place in waiting]
        busy = [self._workload.need(one.spec) for one in self._running.values()]
        at_once = self._request.limits.at_once if self._request.on_ray else 1
        room = _room({need.kind for need in needs}) if self._request.on_ray else {}
        for index in startable(needs, busy, room, at_once):
            place = waiting[index]
            one = RunningPoint(
                self._state.points[place], self._spec(place), self._workload, self._tracker, self._folder / "logs", self._changed
            )
            self._running[place] = one
            one.start(self._state.run_id, force=self._request.force)

    def _collect(self, run: SweepRun) -> None:
        """Take over where the running points stand, and let go of those that have ended."""
        for place, one in list(self._running.items()):
            ended, point = one.ended, one.point
            if ended:
                del self._running[place]
                if point.state == REJECTED:
                    point = replace(point, run_id=run.rejected(self._state.identity, point))
                if try_again(point, self._request.limits) and not self._state.over:
                    self._view.say(f"  {point.label or point.key}: tried again after: {point.reason}")
                    point = point.again()
            self._set(place, point)

    def _stop_all(self, over: str) -> None:
        """Let what runs stop with a checkpoint; what waits stays undone."""
        reason = f"{over} Raise the limit and run the same command to continue."
        self._view.say(reason)
        self._state = replace(self._state, over=reason)
        for one in self._running.values():
            one.stop(lambda: BudgetReachedError("stopped with a checkpoint: the budget of the sweep is reached"))
        for place, point in enumerate(self._state.points):
            if point.state == WAITING and self._before[place].state in (DONE, SKIPPED) and not self._request.force:
                self._set(place, replace(self._before[place], state=SKIPPED))
            elif point.state == WAITING:
                left = "not started: the budget of the sweep is reached"
                self._set(place, replace(point, state=STOPPED, reason=left, exit_code=BudgetReachedError.exit_code))

    def _wait_for_all(self, run: SweepRun) -> None:
        if self._running:
            self._view.say("stopping: each trial after its step, with a checkpoint; Ctrl-C again does not wait")
        while self._running:
            self._collect(run)
            self._write(run)
            self._view.show(self._state)
            time.sleep(_POLL_S)

    def _write(self, run: SweepRun) -> None:
        now = time.monotonic()
        if now - self._written >= _WRITE_S:
            self._state = replace(self._state, at=time.time())
            write_state(self._folder, self._state)
            self._written = now
        if now - self._tracked >= _TRACK_S:
            run.keep(self._state)
            self._tracked = now

    def _set(self, place: int, point: Point) -> None:
        points = self._state.points
        self._state = replace(self._state, points=(*points[:place], point, *points[place + 1 :]))

    def _spec(self, place: int) -> ExperimentSpec:
        spec = self._request.specs[place]
        if isinstance(spec, InputError):  # Rejected at the gate; it never waits.
            raise spec
        return spec

    def _need(self, place: int) -> Need:
        return self._workload.need(self._spec(place))


def _room(kinds: set[str]) -> dict[str, float]:
    """What the cluster has now of what trials need to themselves: custom resources as Ray counts them, for a kind of GPU its GPUs."""
    room = dict.fromkeys(kinds, 0.0)
    for node in ray.nodes():
        found = node["Resources"] if node["Alive"] else {}
        for kind in kinds & found.keys():
            room[kind] += found.get("GPU", 0.0) if kind.startswith("accelerator_type:") else found[kind]
    return room
