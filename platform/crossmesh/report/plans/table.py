"""A plan in a terminal and as CSV: one line a point, and under it why a point is rejected. Shows; computes nothing."""

import csv
import io
from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from crossmesh.plan.figures import MODELLED
from crossmesh.plan.record import PlanRecord
from crossmesh.report.plans.compiled import compiled_lines, compiled_records, compiled_table
from crossmesh.report.plans.loads import LOAD_FIGURES, load_table, loaded
from crossmesh.report.units import number_text, time_text

_GIB = 1 << 30
_SOURCE = "source of HBM / step"
_COLUMNS = ("fits", "HBM GiB", "step", "tokens/s", "MFU", "hours", "USD", "USD/1M tokens", "limiter", _SOURCE)
_LEFT = ("fits", "limiter", _SOURCE)
_SPARED = ("MFU", "limiter", "hours", "step", "tokens/s", "HBM GiB")
"""Columns that a narrow terminal does without, in this order; prices stay."""
_ALWAYS = ("fits", "USD")
"""Columns that stay though all points have the same in them."""
_CSV = (
    "label",
    "workload",
    "hardware",
    "chips",
    "fits",
    "pareto",
    "hbm_bytes_per_chip",
    "hbm_available_bytes",
    "hbm_source",
    "step_seconds",
    "step_source",
    "step_seconds_bound",
    "tokens_per_s",
    "mfu",
    "hours",
    "usd",
    "usd_per_million_tokens",
    "limiter",
    "rejected_because",
    "nearest",
)
_CSV_INSIDE = {
    "calibration": ("factor",),
    "compiled": ("hbm_bytes", "flops", "bytes", "seconds", "by"),
    "agreement": ("memory", "flops", "seconds"),
    "serving": LOAD_FIGURES,
}
"""Figures within a record's own mappings."""


def plan_cells(one: PlanRecord) -> tuple[str, ...]:
    """The cells of `plan_columns`."""
    return (
        "yes" if one.fits else "no",
        f"{one.hbm_bytes_per_chip / _GIB:.1f} / {(one.hbm_available_bytes or 0) / _GIB:.1f}" if one.hbm_bytes_per_chip else "",
        time_text(one.step_seconds),
        f"{one.tokens_per_s:,.0f}" if one.tokens_per_s else "",
        f"{one.mfu:.1%}" if one.mfu else "",
        f"{one.hours:.2f}" if one.hours is not None else "",
        f"{one.usd:.2f}" if one.usd is not None else "",
        f"{one.usd_per_million_tokens:.3f}" if one.usd_per_million_tokens is not None else "",
        (one.limiter or "").replace("_", " "),
        _source(one),
    )


def _source(one: PlanRecord) -> str:
    """Of the memory and of the step's time, once where they are the same; with the factor that own runs put on the time."""
    if one.hbm_source is None or one.step_source is None:
        return ""
    own = one.calibration if one.step_source == MODELLED else None
    factor = f" x {own['factor']:.2f} ({len(own['runs'])} runs)" if own else ""
    return one.hbm_source if one.hbm_source == one.step_source and not factor else f"{one.hbm_source} / {one.step_source}{factor}"


def plan_columns() -> tuple[str, ...]:
    """Headings of `plan_cells`."""
    return _COLUMNS


def print_plan(title: str, records: Sequence[PlanRecord], notes: Sequence[str], console: Console) -> None:
    """Print the table, what compilers say, the reasons of what is rejected, and the notes."""
    console.print(render_plan(title, records, notes, console.width))


def render_plan(title: str, records: Sequence[PlanRecord], notes: Sequence[str], width: int) -> RenderableType:
    """Return it as something rich can print on `width` columns; all text from outside is literal."""
    parts: list[RenderableType] = [_one(title, records[0])] if len(records) == 1 else _many(title, records, width)
    for one in records:
        if one.rejected_because:
            parts.append(Text(f"{one.label}: {one.rejected_because}", style="red"))
            if one.nearest:
                parts.append(Text(f"  nearest that fits: {one.nearest}"))
    parts += [Text(note, style="yellow") for note in notes]
    return Group(*parts)


def _many(title: str, records: Sequence[PlanRecord], width: int) -> list[RenderableType]:
    """A line a point: what is swept, and its figures."""
    swept = list(dict.fromkeys(key for one in records for key in one.swept))
    rows = [
        {**{key: one.swept.get(key, "") for key in swept}, **dict(zip(_COLUMNS, plan_cells(one), strict=True))}
        if swept
        else {"": one.label, **dict(zip(_COLUMNS, plan_cells(one), strict=True))}
        for one in records
    ]
    constant = _constant(rows, swept)
    rows = [{key: cell for key, cell in row.items() if key not in constant} for row in rows]
    headings = {key: key.rpartition(".")[2] if key in swept else key for key in rows[0]}
    spared = _spared(headings, rows, width)
    table = Table(title=Text(title), title_justify="left")
    table.add_column("")
    for key in rows[0]:
        if key not in spared:
            table.add_column(Text(headings[key]), justify="left" if key in (*_LEFT, *swept, "") else "right", overflow="fold")
    for one, row in zip(records, rows, strict=True):
        style = "bold" if one.pareto else "" if one.fits else "dim"
        cells = [Text(cell) for key, cell in row.items() if key not in spared]
        table.add_row("*" if one.pareto else "", *cells, style=style)
    shared = ", ".join(f"{key}: {cell}" for key, cell in constant.items() if cell)
    parts: list[RenderableType] = [*([Text(f"All points: {shared}")] if shared else []), table]
    if any(one.pareto for one in records):
        parts.append(Text("* Pareto front of time against price of a token"))
    if spared:
        parts.append(Text(f"Left out for want of width, and in plan.csv: {', '.join(spared)}"))
    if compiled_records(records):
        parts.append(compiled_table(records))
    if loaded(records):
        parts.append(load_table(records))
    return parts


def _constant(rows: Sequence[Mapping[str, str]], swept: Sequence[str]) -> dict[str, str]:
    """Columns in which all points, of several, have the same, with what that is."""
    if len(rows) < 2:
        return {}
    kept = {"", *swept, *_ALWAYS}
    return {key: cell for key, cell in rows[0].items() if key not in kept and all(row[key] == cell for row in rows)}


def _spared(headings: Mapping[str, str], rows: Sequence[Mapping[str, str]], width: int) -> list[str]:
    """Columns to leave out so that the rest has room."""
    words = {key: max(map(len, heading.split()), default=0) for key, heading in headings.items()}
    sizes = {key: 3 + max(longest, *(len(row[key]) for row in rows)) for key, longest in words.items()}
    spared: list[str] = []
    for key in (one for one in _SPARED if one in headings):
        if 5 + sum(size for name, size in sizes.items() if name not in spared) <= width:
            break
        spared.append(key)
    return spared


def _one(title: str, record: PlanRecord) -> Table:
    """All that is known of one point, a line a figure."""
    table = Table(title=Text(title), title_justify="left", show_header=False)
    lines = {"hardware": record.hardware, **dict(zip(_COLUMNS, plan_cells(record), strict=True))}
    lines |= {f"memory: {name.replace('_', ' ')}": f"{size / _GIB:.2f} GiB" for name, size in record.memory.items()}
    lines |= {f"time: {name.replace('_', ' ')}": time_text(seconds) for name, seconds in record.phases.items() if seconds}
    lines |= compiled_lines(record)
    for name, value in (record.serving or {}).items():
        lines[name.replace("_", " ")] = time_text(value) if "seconds" in name else number_text(value)
    if record.step_seconds_bound and not record.serving:
        lines["physical lower bound"] = time_text(record.step_seconds_bound)
    for name, value in (record.unit_prices or {}).items():
        lines[name.replace("_", " ")] = f"{value:.4g}"
    for name, text in lines.items():
        if text:
            table.add_row(Text(name), Text(text))
    return table


def plan_csv(records: Sequence[PlanRecord]) -> str:
    """One line a point."""
    inside = [(group, name) for group, names in _CSV_INSIDE.items() for name in names]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*_CSV, *(f"{group}_{name}" for group, name in inside)])
    for one in records:
        writer.writerow([*(getattr(one, name) for name in _CSV), *((getattr(one, group) or {}).get(name) for group, name in inside)])
    return stream.getvalue()
