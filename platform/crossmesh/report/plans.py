"""Collects the points of a plan, one or a whole sweep, and presents them: table, JSON, files, exit code."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole

from crossmesh.console import Console
from crossmesh.errors import InputError, RejectedError, require
from crossmesh.plan.arrivals import load_of
from crossmesh.plan.forecast import Forecast, forecast, pareto
from crossmesh.plan.point import training_point
from crossmesh.plan.record import PlanRecord, training_record
from crossmesh.plan.serving_forecast import serving_forecast
from crossmesh.plan.serving_point import serving_point
from crossmesh.plan.serving_record import serving_record
from crossmesh.report.paper import show_paper
from crossmesh.report.plan_files import write_plan
from crossmesh.report.plan_table import print_plan
from crossmesh.spec.compose import sweep_overrides
from crossmesh.spec.experiment import ExperimentSpec

_NOT_COMPILED = "Figures are modelled: crossmesh does not compile or trace the step yet."


class Plans:
    """The points that were planned, in order."""

    def __init__(self) -> None:
        """Start empty."""
        self._records: list[PlanRecord] = []
        self._forecasts: dict[int, Forecast] = {}
        self._overrides: list[tuple[str, ...]] = []
        self._spec: ExperimentSpec | None = None
        self._output = "table"
        self._folder = ""

    def add(self, spec: ExperimentSpec, output: str, folder: str) -> None:
        """Plan `spec`; in a sweep it is one of its points."""
        today = datetime.now(UTC).date()
        if spec.plan.report == "paper":
            require(sweep_overrides() is None, "plan.report", spec.plan.report, "once, without -m")
            show_paper(today, Path(folder or spec.storage.path / "plans" / "paper"), output)
            return
        self._spec, self._output, self._folder = spec, output, folder
        self._overrides.append(sweep_overrides() or ())
        self._records.append(self._planned(spec, today))

    def refuse(self, error: InputError) -> bool:
        """Take a point of a sweep that cannot even be described; outside a sweep it is the user's mistake."""
        overrides = sweep_overrides()
        if overrides is None:
            return False
        self._overrides.append(overrides)
        self._records.append(PlanRecord(label="", rejected_because=str(error)))
        return True

    def finish(self, command: str) -> None:
        """Show and write the plan; exit 3 when the point, or all of the sweep, is rejected, or a budget is exceeded."""
        spec = self._spec
        if spec is None:
            if self._records:
                sys.stderr.write("\n".join(one.rejected_because or "" for one in self._records) + "\n")
                sys.exit(RejectedError.exit_code)
            return
        records = self._labelled()
        over = _over_budget(records, spec) if len(records) > 1 else ""
        notes = [*dict.fromkeys(warning for one in records for warning in one.warnings), *([over] if over else []), _NOT_COMPILED]
        values = plan_json(spec.name, records, notes, command)
        folder = Path(self._folder or spec.storage.path / "plans" / f"{spec.name}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S')}")
        page = write_plan(f"{spec.name}: plan", records, notes, values, folder)
        console = Console()
        console.finish(lambda: print_plan(f"{spec.name}: plan", records, notes, RichConsole(highlight=False)), values, self._output)
        console.say(f"files of the plan: {page.parent}")
        if over or not any(one.fits for one in records):
            if self._output == "json":
                sys.stderr.write((over or records[0].rejected_because or "") + "\n")
            sys.exit(RejectedError.exit_code)

    def _planned(self, spec: ExperimentSpec, today: date) -> PlanRecord:
        if spec.plan.workload == "serve":
            load = load_of(spec.plan, spec.serve.max_model_len)
            return serving_record(spec.name, serving_forecast(serving_point(spec), spec.plan, today, load))
        planned = forecast(training_point(spec), spec.plan, today)
        self._forecasts[len(self._records)] = planned
        return training_record(spec.name, planned)

    def _labelled(self) -> list[PlanRecord]:
        """The records with what differs between them as their labels, and the front marked."""
        front = {id(one) for one in pareto(list(self._forecasts.values()))} if len(self._records) > 1 else set()
        labels = labels_of(self._overrides)
        return [
            replace(record, label=label or record.label, pareto=id(self._forecasts.get(index)) in front)
            for index, (record, label) in enumerate(zip(self._records, labels, strict=True))
        ]


def labels_of(overrides: Sequence[tuple[str, ...]]) -> list[str]:
    """For each point the overrides that not all of them share."""
    shared = set(overrides[0]).intersection(*overrides[1:]) if len(overrides) > 1 else set(overrides[0]) if overrides else set()
    return [" ".join(one for one in own if one not in shared) for own in overrides]


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


def _over_budget(records: Sequence[PlanRecord], spec: ExperimentSpec) -> str:
    """Why the runs of the whole sweep are too much; empty when they are not."""
    usd, hours = (sum(getattr(one, name) or 0.0 for one in records if one.fits) for name in ("usd", "hours"))
    if spec.plan.sweep_max_usd and usd > spec.plan.sweep_max_usd:
        return f"The runs of the sweep cost {usd:.2f} USD, more than plan.sweep_max_usd={spec.plan.sweep_max_usd:g}."
    if spec.plan.sweep_max_hours and hours > spec.plan.sweep_max_hours:
        return f"The runs of the sweep take {hours:.2f} hours, more than plan.sweep_max_hours={spec.plan.sweep_max_hours:g}."
    return ""
