"""Collects the points of a plan, one or a whole sweep, has some compiled, and presents them: table, JSON, files, runs, exit code."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole

from crossmesh.config.compose import INTERRUPTED
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.sweep import labels_of
from crossmesh.console import Console, Stage
from crossmesh.errors import CrossmeshError, InputError, RejectedError
from crossmesh.hardware.chips import AgeWarning
from crossmesh.plan.planner import OpenedPlanner, Planner, open_planner
from crossmesh.plan.point import training_point
from crossmesh.plan.record import PlanRecord, training_record
from crossmesh.plan.serving.arrivals import planned_load
from crossmesh.plan.serving.forecast import serving_forecast
from crossmesh.plan.serving.point import serving_point
from crossmesh.plan.serving.record import serving_record
from crossmesh.plan.training.forecast import Forecast, pareto
from crossmesh.report.plans.files import write_plan
from crossmesh.report.plans.table import print_plan
from crossmesh.report.plans.tracked import log_plan
from crossmesh.track.run_log import TrackingError

_PRICE_NOTES = 3
"""Sources of prices that are named under a plan; the rest stands in its files."""


@dataclass(frozen=True)
class _Point:
    """One planned point: a run's forecast, or what else is known of it."""

    overrides: tuple[str, ...]
    planned: Forecast | PlanRecord

    @property
    def record(self) -> PlanRecord:
        return self.planned if isinstance(self.planned, PlanRecord) else training_record("", self.planned)


class Plans:
    """The points that were planned, in order."""

    def __init__(self) -> None:
        """Start empty."""
        self._points: list[_Point] = []
        self._notes: list[str] = []
        self._spec: ExperimentSpec | None = None
        self._open: OpenedPlanner | None = None
        self._command = ""
        self._output = "table"
        self._folder = ""
        self._stage = Stage(RichConsole(stderr=True, highlight=False))
        self._size: int | None = None
        """Points of the sweep."""

    @contextmanager
    def collecting(self, command: str) -> Iterator[None]:
        """Collect within the block, then show, write and log the plan; after Ctrl-C what there is of it.

        Ends the process with 3 when the point, or all of a sweep, is rejected, or when a budget is exceeded. `command` is what was typed.
        """
        self._command, interrupted = command, False
        try:
            yield
        except SystemExit as ended:
            interrupted = ended.code == INTERRUPTED and bool(self._points)
            if not interrupted:
                raise
        finally:
            self._stage.close()
        try:
            self._finish(interrupted=interrupted or self._compile())
        except CrossmeshError as error:
            sys.stderr.write(f"crossmesh: {error}\n")
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)

    def expect(self, size: int) -> None:
        """Take how many points the sweep has that will be added or refused."""
        self._size = size

    def add(self, overrides: tuple[str, ...], spec: ExperimentSpec, output: str, folder: str) -> None:
        """Plan `spec`: a point of a sweep with its overrides, or the only one."""
        self._spec, self._output, self._folder = spec, output, folder
        self._points.append(_Point(overrides, self._planned(spec)))
        self._count()

    def refuse(self, overrides: tuple[str, ...], error: InputError) -> None:
        """Take a point of a sweep that cannot even be described."""
        self._points.append(_Point(overrides, PlanRecord(label="", rejected_because=str(error))))
        self._count()

    def _count(self) -> None:
        if self._size:
            self._stage.progress("points", len(self._points), self._size)

    def _planned(self, spec: ExperimentSpec) -> Forecast | PlanRecord:
        planner = replace(self._opened(spec), plan=spec.plan)
        if spec.plan.workload == "serve":
            load = planned_load(spec.plan, spec.serve.max_model_len)
            return serving_record(spec.name, serving_forecast(serving_point(spec), spec.plan, planner.today, load))
        point = training_point(spec)
        planned, compiler = planner.planned(point), planner.compiler(point)
        if spec.plan.compile == "always" and planned.uncompiled and compiler and compiler.missing():
            raise InputError(f"plan.compile=always: {compiler.missing()}")
        return planned

    def _opened(self, spec: ExperimentSpec) -> Planner:
        if self._open is None:
            self._open = open_planner(spec)
            if self._open.note:
                self._notes.append(self._open.note)
        return self._open.planner

    def _compile(self) -> bool:
        """Have what is worth it compiled or traced; returns whether that was interrupted."""
        if self._open is None or self._spec is None:
            return False
        planner = replace(self._open.planner, plan=self._spec.plan)
        places = [place for place, one in enumerate(self._points) if isinstance(one.planned, Forecast)]
        forecasts = [one.planned for one in self._points if isinstance(one.planned, Forecast)]
        try:
            for index, again in planner.compiled(forecasts, self._notes.append):
                self._points[places[index]] = replace(self._points[places[index]], planned=again)
        except KeyboardInterrupt:
            return True
        return False

    def _finish(self, *, interrupted: bool) -> None:
        spec = self._spec
        if spec is None:
            if self._points:
                sys.stderr.write("\n".join(one.record.rejected_because or "" for one in self._points) + "\n")
                sys.exit(RejectedError.exit_code)
            return
        records = self._labelled(spec)
        over = _over_budget(records, spec) if len(records) > 1 else ""
        notes = self._all_notes(records, over, interrupted=interrupted)
        values = plan_json(spec.name, records, notes, self._command)
        title = f"{spec.name}: plan"
        folder = Path(self._folder or spec.storage.path / "plans" / f"{spec.name}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S')}")
        if self._output == "table":  # Before files and the tracker, which take seconds.
            print_plan(title, records, notes, RichConsole(highlight=False))
            sys.stdout.flush()
        write_plan(title, records, notes, values, folder)
        values["run_id"] = self._logged(spec, records, folder, "KILLED" if interrupted else "FINISHED")
        console = Console()
        console.finish(lambda: None, values, self._output)
        console.say(f"files of the plan: {folder}")
        if interrupted:
            sys.exit(INTERRUPTED)
        if over or not any(one.fits for one in records):
            if self._output == "json":
                sys.stderr.write((over or records[0].rejected_because or "") + "\n")
            sys.exit(RejectedError.exit_code)

    def _labelled(self, spec: ExperimentSpec) -> list[PlanRecord]:
        """The records with what differs between them as their labels, and the front marked."""
        forecasts = [one.planned for one in self._points if isinstance(one.planned, Forecast)]
        front = {id(one) for one in pareto(forecasts)} if len(self._points) > 1 else set()
        labels = labels_of([one.overrides for one in self._points])
        return [
            replace(one.record, label=" ".join(label) or spec.name, swept=_by_key(label), pareto=id(one.planned) in front)
            for one, label in zip(self._points, labels, strict=True)
        ]

    def _all_notes(self, records: Sequence[PlanRecord], over: str, *, interrupted: bool) -> list[str]:
        notes = [*(warning for one in records for warning in _warnings(one, records)), *price_notes(records), *self._notes, over]
        if interrupted:
            planned = f"{len(records)} of {self._size} points are planned" if self._size else "the point is planned"
            notes.append(f"Interrupted: {planned}; what was compiled is kept. The same command continues.")
        return [note for note in dict.fromkeys(notes) if note]

    def _logged(self, spec: ExperimentSpec, records: Sequence[PlanRecord], folder: Path, status: str) -> str | None:
        """The id of the plan's run; None when it could not be logged, which is said, or when nothing keeps it."""
        if self._open is None or self._open.tracker is None or not self._open.tracker.keeps_runs:
            return None
        try:
            shared = _by_key(sorted(set.intersection(*(set(one.overrides) for one in self._points))))
            return log_plan(self._open.tracker, spec, records, shared, folder, self._command, status)
        except TrackingError as error:
            Console().say(str(error))
            return None


def _by_key(overrides: Sequence[str]) -> dict[str, str]:
    return dict(override.partition("=")[::2] for override in overrides)


def plan_json(name: str, records: Sequence[PlanRecord], notes: Sequence[str], command: str) -> dict[str, Any]:
    """One point as its own object, several under `points`."""
    if len(records) == 1:
        return {"name": name, **records[0].json(), "notes": list(notes), "command": command}
    return {
        "name": name,
        "points": [one.json() for one in records],
        "pareto": [one.label for one in records if one.pareto],
        "usd": sum(one.usd or 0.0 for one in records if one.fits),
        "hours": sum(one.hours or 0.0 for one in records if one.fits),
        "fits": any(one.fits for one in records),
        "notes": list(notes),
        "command": command,
    }


def _warnings(one: PlanRecord, records: Sequence[PlanRecord]) -> tuple[str, ...]:
    """The warnings of a point; of several points the age of each price is not one: `price_notes` has a line for all."""
    return tuple(text for text in one.warnings if len(records) == 1 or not isinstance(text, AgeWarning))


def price_notes(records: Sequence[PlanRecord]) -> list[str]:
    """Where the prices are from, a line for each source, date, kind and region; of many sources the first, and how many more."""
    found: dict[str, dict[str, None]] = {}
    for one in records:
        if price := one.price:
            where, when = f" in {price['region']}" if price["region"] else "", price["read"] or "no date"
            group = found.setdefault(f"{price['kind']}{where}, from {price['source']}, {when}", {})
            group[f"{one.hardware} {price['usd_per_hour']:.2f}"] = None
    lines = [f"USD/h {group}: {', '.join(prices)}." for group, prices in found.items()]
    more = len(lines) - _PRICE_NOTES
    lines = lines if more <= 0 else [*lines[:_PRICE_NOTES], f"{more} more sources of prices: price in plan.json."]
    old = sum(any(isinstance(text, AgeWarning) for text in one.warnings) for one in records)
    if old and len(records) > 1:
        lines.append(f"Prices of {old} points are old or of unknown age: look them up, or give your own in hardware.catalogue.")
    return lines


def _over_budget(records: Sequence[PlanRecord], spec: ExperimentSpec) -> str:
    """Why the runs of the whole sweep are too much; empty when they are not."""
    usd, hours = (sum(getattr(one, name) or 0.0 for one in records if one.fits) for name in ("usd", "hours"))
    if spec.plan.sweep_max_usd and usd > spec.plan.sweep_max_usd:
        return f"The runs of the sweep cost {usd:.2f} USD, more than plan.sweep_max_usd={spec.plan.sweep_max_usd:g}."
    if spec.plan.sweep_max_hours and hours > spec.plan.sweep_max_hours:
        return f"The runs of the sweep take {hours:.2f} hours, more than plan.sweep_max_hours={spec.plan.sweep_max_hours:g}."
    return ""
