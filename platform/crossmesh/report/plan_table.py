"""A plan in a terminal and as CSV: one line a point, and under it why a point is rejected. Shows; computes nothing."""

import csv
import io
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from crossmesh.plan.record import PlanRecord
from crossmesh.report.plan_loads import load_table, loaded
from crossmesh.report.units import number_text, time_text

_GIB = 1 << 30
_COLUMNS = ("fits", "HBM GiB", "step", "tokens/s", "MFU", "hours", "USD", "USD/1M tokens", "limiter", "source")
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
_CSV_LOADS = (
    "load_qps",
    *(f"{name}_seconds_{part}" for name in ("ttft", "tpot", "e2e") for part in ("mean", "p50", "p90", "p99")),
    "load_requests",
    "load_batch",
    "load_most_waiting",
    "load_preemptions",
    "load_busy_share",
    "most_qps",
    "most_tokens_per_s",
)


def plan_cells(one: PlanRecord) -> tuple[str, ...]:
    """The cells of `_COLUMNS`."""
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
        one.step_source or "",
    )


def plan_columns() -> tuple[str, ...]:
    """Headings of `plan_cells`."""
    return _COLUMNS


def print_plan(title: str, records: Sequence[PlanRecord], notes: Sequence[str], console: Console) -> None:
    """Print the table, the reasons of what is rejected, and the notes."""
    console.print(render_plan(title, records, notes))


def render_plan(title: str, records: Sequence[PlanRecord], notes: Sequence[str]) -> RenderableType:
    """Return it as something rich can print; all text from outside is literal."""
    parts: list[RenderableType] = [_one(title, records[0]) if len(records) == 1 else _many(title, records)]
    if len(records) > 1 and loaded(records):
        parts.append(load_table(records))
    if any(one.pareto for one in records):
        parts.append(Text("* Pareto front of time against price of a token"))
    for one in records:
        if one.rejected_because:
            parts.append(Text(f"{one.label}: {one.rejected_because}", style="red"))
            if one.nearest:
                parts.append(Text(f"  nearest that fits: {one.nearest}"))
    parts += [Text(note, style="yellow") for note in notes]
    return Group(*parts)


def _many(title: str, records: Sequence[PlanRecord]) -> Table:
    """A line a point."""
    table = Table(title=Text(title), title_justify="left")
    table.add_column("", overflow="fold")
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in ("fits", "limiter", "source") else "right")
    for one in records:
        mark = "* " if one.pareto else ""
        style = "bold" if one.pareto else "" if one.fits else "dim"
        table.add_row(Text(f"{mark}{one.label}"), *(Text(cell) for cell in plan_cells(one)), style=style)
    return table


def _one(title: str, record: PlanRecord) -> Table:
    """All that is known of one point, a line a figure."""
    table = Table(title=Text(title), title_justify="left", show_header=False)
    lines = dict(zip(_COLUMNS, plan_cells(record), strict=True))
    lines = {"hardware": record.hardware, **lines}
    lines |= {f"memory: {name.replace('_', ' ')}": f"{size / _GIB:.2f} GiB" for name, size in record.memory.items()}
    lines |= {f"time: {name.replace('_', ' ')}": time_text(seconds) for name, seconds in record.phases.items() if seconds}
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
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    loads = _CSV_LOADS if loaded(records) else ()
    writer.writerow(_CSV + loads)
    writer.writerows([*(getattr(one, name) for name in _CSV), *((one.serving or {}).get(name) for name in loads)] for one in records)
    return stream.getvalue()
