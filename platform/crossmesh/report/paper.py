"""The recomputed paper for a person, a script and a page: its figures beside ours, and its run planned as it was and as it could be."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole
from rich.console import Group
from rich.table import Table
from rich.text import Text

from crossmesh.console import Console
from crossmesh.plan.paper import Line, paper_lines
from crossmesh.plan.paper_runs import PUBLISHED_GPU_TOKENS_PER_S, XLA_STATIC_S, PaperRun, paper_runs
from crossmesh.plan.record import PlanRecord, training_record
from crossmesh.report.plan_files import Sheet, write_plan

_TITLE = "arXiv 2605.25645, recomputed"
_LINE_COLUMNS = ("figure", "paper", "ours", "differs by", "", "how")
_RUN_COLUMNS = ("run", "s/row modelled", "measured", "bound", "calibration", "tokens/s", "of theirs", "USD", "GiB", "limiter", "by")
_SHOWN = {"run": "run", "s/row modelled": "s/row", "measured": "measured", "tokens/s": "tokens/s", "of theirs": "of theirs", "USD": "USD"}
"""Columns of the runs that a terminal has room for, and their headings there."""


def show_paper(today: date, folder: Path, output: str) -> list[PlanRecord]:
    """Print or, with `output=json`, write the report as one line; its files go to `folder`. Returns the runs that it plans."""
    lines, runs = paper_lines(), paper_runs(today)
    notes = _notes(runs)
    values = paper_json(lines, runs, notes)
    sheets = (
        Sheet("Its figures beside ours", _LINE_COLUMNS, tuple(_line_cells(line) for line in lines)),
        Sheet("Its training run, as it was and as it could be", _RUN_COLUMNS, tuple(_run_cells(run) for run in runs)),
    )
    records = [training_record(run.label, run.planned) for run in runs]
    page = write_plan(_TITLE, records, notes, values, folder, sheets)
    console = Console()
    console.finish(lambda: RichConsole(highlight=False).print(_render(lines, runs, notes)), values, output)
    console.say(f"files of the report: {page.parent}")
    return records


def paper_json(lines: Sequence[Line], runs: Sequence[PaperRun], notes: Sequence[str]) -> dict[str, Any]:
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
        "sample_seconds_modelled": run.sample_s,
        "sample_seconds_measured": run.measured_sample_s,
        "calibration": run.calibration,
        "tokens_per_s_calibrated": run.tokens_per_s,
        "usd_of_the_papers_run": run.usd,
        "times_the_papers_tokens_per_s": run.speedup,
    }


def _line_cells(line: Line) -> tuple[str, ...]:
    verdict = "impossible" if line.impossible else "" if line.consistent else "inconsistent"
    return (line.what, f"{line.theirs:.5g} {line.unit}", f"{line.ours:.5g} {line.unit}", f"{line.difference:+.1%}", verdict, line.note)


def _run_cells(run: PaperRun) -> tuple[str, ...]:
    planned, point = run.planned, run.planned.point
    figures = planned.figures
    bound = figures.bound_s / (point.filling.tokens / point.filling.row_tokens) if figures else None
    mesh = f"fsdp={point.mesh.fsdp} tp={point.mesh.tp} micro={point.micro} remat={point.remat} {point.attention}"
    return (
        run.label,
        _number(run.sample_s, ".3f"),
        _number(run.measured_sample_s, ".2f"),
        _number(bound, ".3f"),
        _number(run.calibration, ".2f"),
        _number(run.tokens_per_s, ",.0f"),
        _number(run.speedup, ".2f", "x"),
        _number(run.usd, ".2f"),
        f"{figures.hbm_bytes / 2**30:.1f}" if figures else "does not fit",
        figures.limiter.replace("_", " ") if figures else "",
        mesh,
    )


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"


def _notes(runs: Sequence[PaperRun]) -> list[str]:
    ours = next(run for run in runs if run.measured_sample_s)
    best = max((run for run in runs if run.against is ours.against and not run.measured_sample_s), key=lambda run: run.speedup or 0.0)
    return [
        f"Calibration: the paper measured {ours.measured_sample_s} s for a row that the model gives {ours.sample_s:.3f} s, a ratio of "
        f"{ours.calibration:.2f}, which is applied to what crossmesh would do on the same slice. It is one number of one run, and holds "
        "what the paper's stack wastes beyond padding, remat and full masks; how well it carries over is not known. XLA's static estimate "
        f"of the row is {XLA_STATIC_S} s.",
        f"Forecast on {ours.against.hardware}: {best.tokens_per_s:,.0f} real tokens/s, {best.speedup:.1f} times the paper's, "
        f"{best.usd:.2f} USD for its run ({best.label}). packing=step learns the same as padding; packing=stream is its own science.",
        f"On H100 the published rate is {PUBLISHED_GPU_TOKENS_PER_S:,.0f} tokens/s a GPU for BF16 LoRA of a 32B model; the paper's is 243.",
        "Real tokens/s, USD and the ratio are calibrated; what is modelled stands beside them. Nothing here was measured by us.",
    ]


def _render(lines: Sequence[Line], runs: Sequence[PaperRun], notes: Sequence[str]) -> Group:
    figures = Table(title=Text("Its figures beside ours"), title_justify="left")
    for column in _LINE_COLUMNS[:-1]:
        figures.add_column(column, justify="left" if column in ("figure", "") else "right")
    for line in lines:
        figures.add_row(*(Text(cell) for cell in _line_cells(line)[:-1]), style="" if line.consistent else "red")
    ways = Table(title=Text("Its training run, as it was and as it could be"), title_justify="left")
    for heading in _SHOWN.values():
        ways.add_column(heading, justify="left" if heading == "run" else "right")
    for run in runs:
        cells = dict(zip(_RUN_COLUMNS, _run_cells(run), strict=True))
        ways.add_row(*(Text(cells[column]) for column in _SHOWN))
    wrong = [Text(f"{line.what}: {line.note}", style="red") for line in lines if not line.consistent]
    return Group(figures, *wrong, ways, *(Text(note, style="yellow") for note in notes))
