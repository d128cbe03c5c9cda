"""Plans runs with everything that is known on this machine beside their specs: kept answers of compilers, and what own runs measured."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.planning import PlanSpec
from crossmesh.console import Console
from crossmesh.errors import CrossmeshError
from crossmesh.plan.compilers.choice import Compiler, worth_compiling
from crossmesh.plan.compilers.compiled import TpuCompiler
from crossmesh.plan.compilers.traced import GpuTrace
from crossmesh.plan.figures import Compiled
from crossmesh.plan.point import TrainingPoint
from crossmesh.plan.store.store import AnswerStore
from crossmesh.plan.training.calibration import Measured, calibration_of, own_measurements
from crossmesh.plan.training.exact import broken_rules
from crossmesh.plan.training.forecast import Forecast, forecast
from crossmesh.track.run_log import TrackingError
from crossmesh.track.tracker import Tracker
from crossmesh.track.trackers import open_tracker


@dataclass(frozen=True)
class Planner:
    """What forecasts are made with."""

    plan: PlanSpec
    today: date
    compilers: tuple[Compiler, ...] = ()
    measured: Sequence[Measured] = ()
    """What own runs measured."""

    def planned(self, point: TrainingPoint) -> Forecast:
        """The forecast of `point`, with the kept answer of its compiler where there is one and `plan.compile` allows it."""
        compiler = self.compiler(point)
        kept = compiler.find(point) if compiler and self.plan.compile != "never" and not broken_rules(point) else None
        return self.answered(point, kept)

    def answered(self, point: TrainingPoint, compiled: Compiled | None) -> Forecast:
        """The forecast of `point` with this answer of its compiler."""
        return forecast(point, self.plan, self.today, compiled, calibration_of(point, self.measured))

    def compiled(self, forecasts: Sequence[Forecast], say: Callable[[str], None]) -> Iterator[tuple[int, Forecast]]:
        """Have those points compiled or traced that are worth it, and yield each anew with its index in `forecasts`, as it is done.

        `say` hears why one could not be: no compiler here, or one that refuses the step.
        """
        indices = {id(one): index for index, one in enumerate(forecasts)}
        for one in worth_compiling(self.plan.compile, forecasts, lambda point: self.compiler(point) is not None):
            compiler = self.compiler(one.point)
            if compiler is None:
                continue
            try:
                reason = compiler.missing()
                if reason:
                    say(reason)
                else:
                    yield indices[id(one)], self.answered(one.point, compiler.compile(one.point))
            except CrossmeshError as error:
                say(f"Not compiled: {error}")

    def compiler(self, point: TrainingPoint) -> Compiler | None:
        """The compiler for the hardware and backend of `point`; None where there is none."""
        return next((one for one in self.compilers if one.serves(point)), None)


def own_planner(spec: ExperimentSpec, tracker: Tracker | None = None) -> Planner:
    """The planner of a job, as of today; without a `tracker`, or with `plan.calibrate=false`, no run calibrates it.

    Raises `TrackingError` when the tracking store cannot be reached.
    """
    cache, console = spec.storage.path / "cache", Console()
    store = AnswerStore(cache / "plan", spec.plan.answers)
    compilers = (TpuCompiler(store, console), GpuTrace(store, console, cache))
    measured = own_measurements(tracker) if tracker and spec.plan.calibrate else ()
    return Planner(spec.plan, datetime.now(UTC).date(), compilers, measured)


@dataclass(frozen=True)
class OpenedPlanner:
    """The planner of a job, and where what it plans is logged."""

    planner: Planner
    tracker: Tracker | None = None
    """None: the tracking store cannot be reached."""
    note: str = ""
    """Why nothing is calibrated and nothing logged."""


def open_planner(spec: ExperimentSpec) -> OpenedPlanner:
    """The planner of a job, with own runs that are tracked; when the tracker is away a note says so."""
    try:
        tracker = open_tracker(spec.tracking, spec.storage)
        return OpenedPlanner(own_planner(spec, tracker), tracker)
    except TrackingError as error:
        return OpenedPlanner(own_planner(spec), note=f"Neither calibrated by own runs nor logged. {error}")
