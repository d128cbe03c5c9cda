"""Plans a run with everything that is known on this machine beside its spec: kept answers of compilers, and what own runs measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date

from crossmesh.plan.calibration import Calibration
from crossmesh.plan.compilers import Compiler
from crossmesh.plan.exact import broken_rules
from crossmesh.plan.figures import Compiled
from crossmesh.plan.forecast import Forecast, forecast
from crossmesh.plan.point import Point
from crossmesh.spec.planning import PlanSpec


@dataclass(frozen=True)
class Planner:
    """What forecasts are made with."""

    plan: PlanSpec
    today: date
    compilers: tuple[Compiler, ...] = ()
    calibrations: Mapping[tuple[str, str], Calibration] = field(default_factory=dict)

    def planned(self, point: Point) -> Forecast:
        """The forecast of `point`, with the kept answer of its compiler where there is one and `plan.compile` allows it."""
        compiler = self.compiler(point)
        kept = compiler.find(point) if compiler and self.plan.compile != "never" and not broken_rules(point) else None
        return self.answered(point, kept)

    def answered(self, point: Point, compiled: Compiled | None) -> Forecast:
        """The forecast of `point` with this answer of its compiler."""
        return forecast(point, self.plan, self.today, compiled, self.calibrations.get((point.chip.name, point.backend)))

    def compiler(self, point: Point) -> Compiler | None:
        """The compiler for the hardware and backend of `point`; None where there is none."""
        return next((one for one in self.compilers if one.serves(point)), None)
