"""The recomputed paper for a person, a script and a page: its figures beside ours, and its run planned as it was and as it could be."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole
from rich.console import Group
from rich.table import Table
from rich.text import Text

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.console import Console
from crossmesh.paper.figures import Line, paper_lines, unsold_prices
from crossmesh.paper.planned_runs import PUBLISHED_GPU_TOKENS_PER_S, ROWS, XLA_STATIC_S, PaperRun, paper_runs
from crossmesh.plan.planner import open_planner
from crossmesh.plan.record import training_record
from crossmesh.report.plans.files import Sheet, write_plan
from crossmesh.report.plans.tracked import log_plan
from crossmesh.track.run_log import TrackingError

_TITLE = "arXiv 2605.25645, recomputed"
_LINE_COLUMNS = ("figure", "paper", "ours", "differs by", "", "how")
_RUN_COLUMNS = ("run", "s/row", "measured", "bound", "ratio", "tokens/s", "times as run", "USD", "GiB", "limiter", "by")
_SHOWN = ("run", "s/row", "measured", "tokens/s", "times as run", "USD")
"""Columns of the runs that a terminal has room for."""


def report_paper(spec: ExperimentSpec, folder: Path, output: str, command: str) -> None:
    """Print the report or, with `output=json`, write it as one line; its files go to `folder`, and the runs that it plans to the tracker.

    `command` is what was typed.
    """
    opened = open_planner(spec)
    lines, runs = paper_lines(), paper_runs(opened.planner)
    notes = _notes(runs)
    values = training_json(lines, runs, notes)
    sheets = (
        Sheet("Its figures beside ours", _LINE_COLUMNS, tuple(_line_cells(line) for line in lines)),
        Sheet("Its training run, as it was and as it could be", _RUN_COLUMNS, tuple(_run_cells(run) for run in runs)),
    )
    records = [training_record(run.label, run.planned) for run in runs]
    page = write_plan(_TITLE, records, notes, values, folder, sheets)
    console = Console()
    console.finish(lambda: RichConsole(highlight=False).print(_render(lines, runs, notes)), values, output)
    console.say(f"files of the report: {page.parent}")
    if opened.tracker is None:
        console.say(opened.note)
        return
    try:
        log_plan(opened.tracker, replace(spec, name="paper"), records, {"plan.report": "paper"}, folder, command, "FINISHED")
    except TrackingError as error:
        console.say(f"The report is not logged. {error}")


def training_json(lines: Sequence[Line], runs: Sequence[PaperRun], notes: Sequence[str]) -> dict[str, Any]:
    """The report as JSON values."""
    return {
        "report": "paper",
        "figures": [{**asdict(line), "difference": line.difference, "consistent": line.consistent} for line in lines],
        "inconsistent": [line.what for line in lines if not line.consistent],
        "runs": [_run_json(run) for run in runs],
        "notes": list(notes),
    }


def _run_json(run: PaperRun) -> dict[str, Any]:
    return {
        **training_record(run.label, run.planned).json(),
        "row_seconds": run.sample_s,
        "measured_row_seconds": run.measured_sample_s,
        "measured_over_planned": run.ratio,
        "times_as_they_ran_it": run.speedup,
    }


def _line_cells(line: Line) -> tuple[str, ...]:
    verdict = "impossible" if line.impossible else "" if line.consistent else "inconsistent"
    return (line.what, f"{line.theirs:.5g} {line.unit}", f"{line.ours:.5g} {line.unit}", f"{line.difference:+.1%}", verdict, line.note)


def _run_cells(run: PaperRun) -> tuple[str, ...]:
    planned, point = run.planned, run.planned.point
    figures = planned.figures
    bound = figures.bound_s / (point.filling.tokens / point.filling.row_tokens) if figures else None
    axes = " ".join(f"{axis}={size}" for axis, size in asdict(point.mesh).items() if size > 1 or axis in ("fsdp", "tp"))
    mesh = f"{axes} micro={point.micro} remat={point.remat} {point.attention}"
    return (
        run.label,
        _number(run.sample_s, ".3f"),
        _number(run.measured_sample_s, ".2f"),
        _number(bound, ".3f"),
        _number(run.ratio, ".2f"),
        _number(planned.tokens_per_s, ",.0f"),
        _number(run.speedup, ".2f", "x"),
        _number(planned.usd, ".2f"),
        f"{figures.hbm_bytes / 2**30:.1f}" if figures else "does not fit",
        figures.limiter.replace("_", " ") if figures else "",
        mesh,
    )


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"


def _notes(runs: Sequence[PaperRun]) -> list[str]:
    ours = next(run for run in runs if run.measured_sample_s)
    again = [run for run in runs if run.against is ours.against and not run.measured_sample_s]
    return [
        f"Times, rates and USD are the plan's own, for one pass over {ROWS:,} rows: what `crossmesh plan` says of the same run.",
        *_calibrations(runs),
        *(f"{name}: {warning}" for name, warning in unsold_prices().items()),
        f"The paper measured {ours.measured_sample_s} s for a row that is planned at {ours.sample_s:.3f} s, a ratio of {ours.ratio:.2f}; "
        f"XLA's static estimate is {XLA_STATIC_S} s. Nothing is multiplied by that ratio: it is one run, and holds what the paper's stack "
        "wastes. A run may take, and cost, as much more than is planned.",
        *(
            f"Planned on {run.against.hardware}: {run.planned.tokens_per_s:,.0f} real tokens/s, {run.speedup:.1f} times what is planned as "
            f"they ran it{_usd(run)} ({run.label})."
            for run in again
        ),
        "packing=step learns the same as padding; packing=stream is its own science.",
        f"On H100 the published rate is {PUBLISHED_GPU_TOKENS_PER_S:,.0f} tokens/s a GPU for BF16 LoRA of a 32B model; the paper's is 243.",
    ]


def _calibrations(runs: Sequence[PaperRun]) -> list[str]:
    """What the figures of each slice rest on."""
    calibrated = {run.against.hardware: run.planned.calibration for run in runs}
    modelled = ", ".join(hardware for hardware, found in calibrated.items() if found is None)
    said = [f"On {hardware}: {found.text}" for hardware, found in calibrated.items() if found]
    return [*said, *([f"On {modelled} they are modelled, not calibrated: nothing was measured by own runs."] if modelled else [])]


def _usd(run: PaperRun) -> str:
    return "" if run.planned.usd is None else f", {run.planned.usd:.2f} USD"


def _render(lines: Sequence[Line], runs: Sequence[PaperRun], notes: Sequence[str]) -> Group:
    figures = Table(title=Text("Its figures beside ours"), title_justify="left")
    for column in _LINE_COLUMNS[:-1]:
        figures.add_column(column, justify="left" if column in ("figure", "") else "right")
    for line in lines:
        figures.add_row(*(Text(cell) for cell in _line_cells(line)[:-1]), style="" if line.consistent else "red")
    ways = Table(title=Text("Its training run, as it was and as it could be"), title_justify="left")
    for heading in _SHOWN:
        ways.add_column(heading, justify="left" if heading == "run" else "right")
    for run in runs:
        cells = dict(zip(_RUN_COLUMNS, _run_cells(run), strict=True))
        ways.add_row(*(Text(cells[column]) for column in _SHOWN))
    wrong = [Text(f"{line.what}: {line.note}", style="red") for line in lines if not line.consistent]
    return Group(figures, *wrong, ways, *(Text(note, style="yellow") for note in notes))
