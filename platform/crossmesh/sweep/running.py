"""One point while it runs, in a thread of its own: what it says becomes its state, and how it ended its last one.

The thread only waits and listens: what computes are workers on the cluster.
"""

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.errors import BudgetReachedError, CrossmeshError, InputError, RejectedError
from crossmesh.files import write_text
from crossmesh.sweep.state import DONE, EARLY, FAILED, REJECTED, RUNNING, SKIPPED, STOPPED, Point
from crossmesh.sweep.work import Hooks, Workload
from crossmesh.track.tracker import Tracker
from crossmesh.train.events import Event, StageEvent, StartEvent, StepEvent, WarningEvent
from crossmesh.train.loop import DivergedError
from crossmesh.trial.trial import StoppedEarlyError

_RECENT = 0.3
"""Weight of the last step in the mean that the time left follows from."""


class RunningPoint:
    """A point that was started. `stop` ends it, with a checkpoint; `point` is where it stands."""

    def __init__(
        self, point: Point, spec: ExperimentSpec, workload: Workload, tracker: Tracker, logs: Path, changed: threading.Event
    ) -> None:
        self.spec = spec
        self._point = replace(point.again(), state=RUNNING)
        self._workload = workload
        self._tracker = tracker
        self._logs = logs
        self._changed = changed
        self._lock = threading.Lock()
        self._started: float | None = None
        self._step_s: float | None = None
        self._steps: list[StepEvent] = []
        self._stop: Callable[[], BaseException] | None = None
        self._thread: threading.Thread | None = None

    def start(self, parent: str, *, force: bool) -> None:
        """Begin, under the sweep's run `parent`."""
        self._thread = threading.Thread(target=self._run, args=(parent, force), name=f"point-{self._point.key}", daemon=True)
        self._thread.start()

    @property
    def point(self) -> Point:
        """Where it stands, its time until now included."""
        with self._lock:
            return replace(self._point, seconds=self._point.seconds + self._running_s())

    def new_steps(self) -> list[StepEvent]:
        """The steps that it took since the last call; those of an earlier start are told again."""
        with self._lock:
            steps, self._steps = self._steps, []
        return steps

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._thread is not None and not self._thread.is_alive()

    def stop(self, reason: Callable[[], BaseException]) -> None:
        """Ask it to stop with a checkpoint; what `reason` makes is raised in its thread, once."""
        self._stop = reason

    def _running_s(self) -> float:
        return 0.0 if self._started is None else time.monotonic() - self._started

    def _check(self) -> None:
        stop, self._stop = self._stop, None
        if stop is not None:
            raise stop()

    def _run(self, parent: str, force: bool) -> None:
        try:
            ran = self._workload.run(self.spec, self._tracker, Hooks(self._hear, self._check, parent, force))
            with self._lock:
                own = replace(self._point, run_id=ran.run_id, step=ran.steps, steps=ran.steps)
                self._point = replace(own, loss=ran.loss, tokens_per_s=ran.tokens_per_s)
            self._end(SKIPPED if ran.skipped else DONE)
        except StoppedEarlyError as error:
            self._end(EARLY, str(error))
        except (KeyboardInterrupt, BudgetReachedError) as error:
            self._end(STOPPED, str(error) or "interrupted", getattr(error, "exit_code", 0))
        except (RejectedError, InputError) as error:
            self._end(REJECTED, str(error), error.exit_code)
        except CrossmeshError as error:
            self._end(FAILED, str(error), error.exit_code, diverged=isinstance(error, DivergedError))
        except Exception as error:  # noqa: BLE001  # A bug, or Ray's own: this point failed, the sweep goes on.
            log = self._logs / f"{self._point.key}.log"
            write_text(log, traceback.format_exc())
            last = " ".join(str(error).split())[-300:]
            self._end(FAILED, f"{type(error).__name__}: {last} Full log: {log}.", CrossmeshError.exit_code)
        finally:
            self._changed.set()

    def _end(self, state: str, reason: str = "", exit_code: int = 0, *, diverged: bool = False) -> None:
        with self._lock:
            seconds = self._point.seconds + self._running_s()
            self._started = None
            tries = self._point.tries + (state == FAILED)
            ended = replace(self._point, state=state, reason=reason, exit_code=exit_code, diverged=diverged)
            self._point = replace(ended, seconds=seconds, tries=tries, left_s=None, stage="")

    def _hear(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, StartEvent) and self._started is None:
                self._started = time.monotonic()
            if isinstance(event, StepEvent):
                self._point = self._stepped(event)
                self._steps.append(event)
            elif isinstance(event, StageEvent | StartEvent | WarningEvent):
                self._point = replace(self._point, stage=event.text)
            else:
                return
        self._changed.set()

    def _stepped(self, event: StepEvent) -> Point:
        if not event.first:
            self._step_s = event.seconds if self._step_s is None else self._step_s + _RECENT * (event.seconds - self._step_s)
        left = None if self._step_s is None else (event.steps - event.step) * self._step_s
        point = replace(self._point, step=event.step, steps=event.steps, loss=event.loss, tokens_per_s=event.tokens_per_s)
        return replace(point, left_s=left, stage="training" if event.step < event.steps else "closing")
