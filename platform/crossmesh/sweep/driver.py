"""Runs a sweep: every point past the gate, then as many at a time as there is room for, within the budget, to a table of all of them.

Killed at any moment, the same command continues: what is done is found done, what was interrupted goes on from its checkpoint, what failed
is tried again as `policy.py` says. What a point is, is its `Workload`'s.
"""

import sys
import threading
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import ray
from rich.console import Console as RichConsole

from crossmesh.cluster.session import ray_session
from crossmesh.config.command_line import command as command_line
from crossmesh.config.command_line import where_given
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.verdicts import MattersSpec
from crossmesh.console import Console
from crossmesh.errors import BudgetReachedError, InputError, RejectedError
from crossmesh.evaluate.estimates import FEWEST_RUNS
from crossmesh.installation import job_command
from crossmesh.plan.planner import own_planner
from crossmesh.sweep.best import Learnt, Verdict, best_words, leaders, verdicts
from crossmesh.sweep.policy import Need, exit_code, over_budget, startable, try_again
from crossmesh.sweep.repeat import Repeats
from crossmesh.sweep.request import Adaptive, Request, check_price, first_state, price_warnings
from crossmesh.sweep.running import RunningPoint
from crossmesh.sweep.runs import SweepRun, as_result
from crossmesh.sweep.state import (
    DONE,
    EARLY,
    FAILED,
    REJECTED,
    RUNNING,
    SKIPPED,
    STOPPED,
    WAITING,
    Point,
    SweepState,
    read_state,
    sweeps_folder,
    write_state,
)
from crossmesh.sweep.view import SweepView, last_table
from crossmesh.sweep.work import Workload
from crossmesh.track.repeats import repeats_by_run, sound_rates
from crossmesh.track.run_log import TrackingError
from crossmesh.track.tracked_run import TAG_DATA, TAG_SCIENCE
from crossmesh.track.tracker import Tracker
from crossmesh.track.trackers import open_tracker
from crossmesh.trial.lease import Lease, leased
from crossmesh.trial.trial import StoppedEarlyError

_POLL_S = 0.5
_WRITE_S = 2.0
"""State on disk is at most so old: what a killed driver has spent since is not counted."""
_TRACK_S = 30.0
"""The same for the tracker."""
LEASE = "lease"
"""Folder of the lease beside the state of a sweep."""


def run_sweep(request: Request, workload: Workload, command: str, adaptive: Adaptive | None = None, then: Repeats | None = None) -> None:
    """Run the sweep and end the process with the exit code of its worst point, after a table of all of them."""
    base, console = request.base, Console()
    if request.on_ray and not workload.live:
        raise InputError("hydra/launcher=ray is not possible here: points that share a machine would measure each other. Leave it out.")
    specs = [spec for spec in (base, *request.specs) if isinstance(spec, ExperimentSpec)]
    for spec in specs:
        check_price(spec, request, workload)
    for warning in price_warnings(specs, request, datetime.now(UTC).date()):
        console.say(warning)
    tracker = open_tracker(base.tracking, base.storage, console.say)
    folder = sweeps_folder(base.storage.path) / request.identity[:16]
    with leased(folder / LEASE, lambda: console.say("another job runs this sweep: waiting for it (Ctrl-C stops waiting)")) as lease:
        sweep = _Sweep(request, workload, tracker, folder, command, lease, adaptive)
        state = sweep.run()
    if then:
        then.add(tracker, base, [point.run_id for point in state.points if point.state in (DONE, SKIPPED)], console.say)
    code = exit_code(state.points)
    values = as_result(state, code)
    matters = base.matters if isinstance(base, ExperimentSpec) else MattersSpec()
    found: tuple[Verdict, ...] = ()
    if adaptive and (ranked := adaptive.search.ranked(state.points)):
        words = best_words(ranked, adaptive.metric, matters)
        values["best"], values["best_words"] = ranked[0].label, words
        values["equal"] = [one.label for one in leaders(ranked, adaptive.metric, matters)]
        console.say(words)
    elif not adaptive:
        found = _verdicts(state, matters, tracker, console)
        values["verdicts"] = [asdict(one) for one in found]
    console.finish(lambda: RichConsole(highlight=False).print(last_table(state)), values, request.output)
    for one in found:
        console.say(f"{one.quantity}: {one.words}")
    compare = [f"sweep={state.run_id}", *where_given()]
    if tracker.keeps_runs and any(one.repeats for one in found):
        console.say(f"to decide it: {command_line(job_command('compare'), [*compare, f'repeat={FEWEST_RUNS}'])}")
    if tracker.keeps_runs:
        console.say(f"the sweep in {tracker.title}: {state.run_id}; compare its trials: {command_line(job_command('compare'), compare)}")
    if code:
        sys.exit(code)


def _verdicts(state: SweepState, matters: MattersSpec, tracker: Tracker, console: Console) -> tuple[Verdict, ...]:
    """What is known of the trials; where the tracker does not answer, nothing, which is said."""
    try:
        repeats = {run_id: sound_rates(runs) for run_id, runs in repeats_by_run(tracker).items()}
        learnt = {run.run_id: Learnt(run.tags.get(TAG_SCIENCE, ""), run.tags.get(TAG_DATA, "")) for run in tracker.children(state.run_id)}
    except TrackingError as error:
        console.say(f"which trial is best is not known: {error}")
        return ()
    return verdicts(state.points, matters, learnt, repeats)


class _Sweep:
    """One start of a sweep."""

    def __init__(
        self, request: Request, workload: Workload, tracker: Tracker, folder: Path, command: str, lease: Lease, adaptive: Adaptive | None
    ) -> None:
        self._request = request
        self._workload = workload
        self._tracker = tracker
        self._folder = folder
        self._lease = lease
        self._adaptive = adaptive
        self._state = first_state(request, read_state(folder), command, adaptive=adaptive is not None)
        self._before = self._state.points
        self._specs = [adaptive.compose(point.overrides) for point in self._before] if adaptive else list(request.specs)
        self._planner = own_planner(request.base, tracker)
        self._view = SweepView(live=workload.live)
        self._changed = threading.Event()
        self._running: dict[int, RunningPoint] = {}
        self._written = self._tracked = -_TRACK_S

    def run(self) -> SweepState:
        """Run what is left and return where it ended."""
        run = SweepRun(self._tracker, self._folder, self._state, self._request.shared)
        self._state = replace(self._state, run_id=run.run_id)
        status = "FAILED"
        try:
            for place in range(len(self._state.points)):
                self._gate(place, run)
            self._ask_for_more(run)
            self._view.show(self._state)
            self._write(run)
            if any(point.state == WAITING for point in self._state.points):
                with ray_session(self._request.base.storage), self._view.shown():
                    self._work(run)
            failed = any(point.state == FAILED for point in self._state.points)
            status = "KILLED" if self._state.over else "FAILED" if failed else "FINISHED"
        except KeyboardInterrupt:
            status = "KILLED"
            raise
        finally:
            self._state = replace(self._state, at=time.time())
            write_state(self._folder, self._state)
            run.finish(self._state, status)
        return self._state

    def _gate(self, place: int, run: SweepRun) -> None:
        """Judge a point before it is started. One that failed for good stays failed, one that was behind stays stopped."""
        point, spec = self._state.points[place], self._specs[place]
        if not self._request.force:
            if point.state == EARLY:
                return
            if point.state == FAILED and not try_again(point, self._request.limits):
                self._view.say(f"  {point.label or point.key}: not tried again: {point.reason}")
                return
        point = point.again()
        try:
            if isinstance(spec, InputError):
                raise spec
            check_price(spec, self._request, self._workload)
            point = replace(point, usd_per_hour=self._workload.usd_per_hour(spec), emulated=spec.hardware.emulated)
            self._workload.gate(spec, replace(self._planner, plan=spec.plan))
        except (RejectedError, InputError) as error:
            point = replace(point, state=REJECTED, reason=str(error), exit_code=error.exit_code)
            point = replace(point, run_id=run.rejected(self._state.identity, point))
        self._set(place, point)

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
                    self._ask_for_more(run)
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

    def _ask_for_more(self, run: SweepRun) -> None:
        """Let a search add points until one waits."""
        while self._adaptive and not any(point.state == WAITING for point in self._state.points):
            overrides = self._adaptive.search.more(self._state.points)
            if overrides is None:
                return
            place = len(self._state.points)
            self._specs.append(self._adaptive.compose(overrides))
            point = Point(f"{place:04}", " ".join(overrides), overrides)
            self._state = replace(self._state, points=(*self._state.points, point))
            self._gate(place, run)

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
            self._judge(one, point)
            if ended:
                del self._running[place]
                if point.state == REJECTED:
                    point = replace(point, run_id=run.rejected(self._state.identity, point))
                if try_again(point, self._request.limits) and not self._state.over:
                    self._view.say(f"  {point.label or point.key}: tried again after: {point.reason}")
                    point = point.again()
            self._set(place, point)

    def _judge(self, one: RunningPoint, point: Point) -> None:
        """Let a search see the new steps of a trial, and stop it when it is behind."""
        steps = one.new_steps()
        if self._adaptive and point.state == RUNNING and steps:
            values = [(step.step, float(getattr(step, self._adaptive.metric))) for step in steps]
            if self._adaptive.search.behind(point, values):
                step = values[-1][0]
                one.stop(lambda: StoppedEarlyError(f"stopped at step {step} or soon after: others were ahead at the same step"))

    def _stop_all(self, over: str) -> None:
        """Let what runs stop with a checkpoint; what waits stays undone."""
        reason = f"{over} Raise the limit and run the same command to continue."
        self._view.say(reason)
        self._state = replace(self._state, over=reason)
        for one in self._running.values():
            one.stop(lambda: BudgetReachedError("stopped with a checkpoint: the budget of the sweep is reached"))
        for place, point in enumerate(self._state.points):
            if (
                point.state == WAITING
                and place < len(self._before)
                and self._before[place].state in (DONE, SKIPPED)
                and not self._request.force
            ):
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
        spec = self._specs[place]
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
