"""What a plan leaves in a folder: JSON, CSV, charts as PNG, and one HTML page that holds everything. The same plan gives the same bytes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from crossmesh.files import write_json, write_text
from crossmesh.plan.record import PlanRecord
from crossmesh.report.charts.runs import PAGE, PAPER, png, svg
from crossmesh.report.plans import compiled as plan_compiled
from crossmesh.report.plans import loads as plan_loads
from crossmesh.report.plans.charts import draw_memory, draw_pareto, draw_planned_scaling, priced_records, scaled, shown_in_memory
from crossmesh.report.plans.table import plan_cells, plan_columns, plan_csv

_WIDTH = 1000
_Draw = Callable[..., None]
"""Takes a figure, `records` and `palette`."""


@dataclass(frozen=True)
class Sheet:
    """A further table of a plan's page."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def write_plan(
    title: str, records: Sequence[PlanRecord], notes: Sequence[str], values: dict[str, Any], folder: Path, sheets: Sequence[Sheet] = ()
) -> Path:
    """Write all files into `folder`, made if need be, and return the path of the HTML."""
    write_json(folder / "plan.json", values)
    write_text(folder / "plan.csv", plan_csv(records))
    figures = []
    for name, caption, draw, height in _charts(records):
        (folder / f"{name}.png").write_bytes(png(partial(draw, records=records, palette=PAPER), _WIDTH, height))
        figures.append((caption, svg(partial(draw, records=records, palette=PAGE), _WIDTH, height, name)))
    sheets = (*_sheets(records), *sheets)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.get_template("plan.html.jinja").render(
        title=title,
        columns=plan_columns(),
        rows=[(one, plan_cells(one)) for one in records],
        figures=figures,
        notes=notes,
        sheets=sheets,
    )
    write_text(folder / "plan.html", page)
    return folder / "plan.html"


def _sheets(records: Sequence[PlanRecord]) -> list[Sheet]:
    """What compilers say of the points, and how loads fare on them."""
    sheets = []
    if said := plan_compiled.compiled_records(records):
        lines = tuple((one.label, *plan_compiled.compiled_cells(one)) for one in said)
        sheets.append(Sheet(plan_compiled.CAPTION, ("", *plan_compiled.COLUMNS), lines))
    if loads := plan_loads.loaded(records):
        lines = tuple((plan_loads.engine(one) or one.hardware, *plan_loads.load_cells(one)) for one in loads)
        sheets.append(Sheet(plan_loads.CAPTION, ("", *plan_loads.COLUMNS), lines))
    return sheets


def _charts(records: Sequence[PlanRecord]) -> list[tuple[str, str, _Draw, int]]:
    """(file, caption, what draws it, height) of the charts that these points have something for."""
    charts: list[tuple[str, str, _Draw, int]] = []
    if len(priced_records(records)) > 1:
        charts.append(("pareto", "Price against time", draw_pareto, 420))
    if shown := shown_in_memory(records):
        charts.append(("memory", "Memory of a chip by kind", draw_memory, 140 + 34 * len(shown)))
    if scaled(records):
        charts.append(("scaling", "Speed over chips", draw_planned_scaling, 380))
    if plan_loads.rated(records):
        charts.append(("loads", "Latency over requests", plan_loads.draw_loads, 420))
    return charts
