"""A finished benchmark as values, as a table and as files: JSON, parquet (one row a measurement, one row a request), charts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from crossmesh.bench.charts import draw_charts
from crossmesh.bench.measured import Measurement
from crossmesh.bench.metrics import Estimate
from crossmesh.bench.runner import CellResult, Found
from crossmesh.files import write_json
from crossmesh.metrics import GOODPUT, OUTPUT_TOKENS_PER_S, TPOT_P50, TTFT_P50, TTFT_P99, USD_PER_MILLION_OUTPUT_TOKENS

RESULT_FILE = "benchmark.json"
_COLUMNS = (
    ("TTFT p50 ms", TTFT_P50.name, 1e3, True),
    ("p99", TTFT_P99.name, 1e3, False),
    ("TPOT", TPOT_P50.name, 1e3, False),
    ("tok/s", OUTPUT_TOKENS_PER_S.name, 1.0, True),
    ("good/s", GOODPUT.name, 1.0, False),
    ("USD/1M", USD_PER_MILLION_OUTPUT_TOKENS.name, 1.0, False),
)
"""Heading, figure, factor, and whether its interval is shown: a terminal has 80 columns. The files have all of them."""


@dataclass(frozen=True)
class Outcomes:
    """What a benchmark of one server came to."""

    server: Mapping[str, Any]
    """What was measured: its fingerprint where it has one."""
    cells: tuple[CellResult, ...]
    found: tuple[Found, ...]
    notes: tuple[str, ...]


def as_json(outcomes: Outcomes, head: Mapping[str, Any]) -> dict[str, Any]:
    """All of it as JSON values; `head` goes first."""
    return {
        **head,
        "cells": [cell_json(one) for one in outcomes.cells],
        "flagged": [one.cell.name for one in outcomes.cells if not one.comparable],
        "saturation": [{"prompt_tokens": one.prompt, "output_tokens": one.output, **asdict(one.rates)} for one in outcomes.found],
        "server": dict(outcomes.server),
        "notes": list(outcomes.notes),
    }


def cell_json(result: CellResult) -> dict[str, Any]:
    """One cell as JSON values."""
    return {
        "name": result.cell.name,
        **asdict(result.cell),
        "repeats": len(result.measurements),
        "figures": {name: asdict(value) for name, value in result.estimates.items()},
        "errors": result.errors,
        "comparable": result.comparable,
        "flags": [asdict(flag) for flag in result.flags],
        "cache_reset": all(one.reset for one in result.measurements),
        "notes": list(result.notes),
    }


def metrics_of(cells: Sequence[CellResult]) -> dict[str, float]:
    """Means by `<cell>/<figure>` for a tracker. Those of a flagged cell stand under `flagged/`, so that nobody compares them unaware."""
    return {
        f"{'' if one.comparable else 'flagged/'}{one.cell.name}/{name}": value.mean
        for one in cells
        for name, value in one.estimates.items()
    }


def write_files(outcomes: Outcomes, values: Mapping[str, Any], folder: Path) -> None:
    """Write everything into `folder`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RESULT_FILE, values)
    pq.write_table(pa.Table.from_pylist(_measurement_rows(outcomes.cells)), folder / "measurements.parquet")
    pq.write_table(pa.Table.from_pylist(_request_rows(outcomes.cells)), folder / "requests.parquet")
    draw_charts(outcomes.cells, folder)


def _measurement_rows(cells: Sequence[CellResult]) -> list[dict[str, Any]]:
    names = sorted({name for one in cells for figures in one.figures for name in figures})
    return [
        {
            "name": one.cell.name,
            **asdict(one.cell),
            "repeat": repeat,
            "comparable": one.comparable,
            **{name: figures.get(name) for name in names},
        }
        for one in cells
        for repeat, figures in enumerate(one.figures)
    ]


def _request_rows(cells: Sequence[CellResult]) -> list[dict[str, Any]]:
    return [row for one in cells for repeat, measured in enumerate(one.measurements) for row in _rows(one.cell.name, repeat, measured)]


def _rows(cell: str, repeat: int, measured: Measurement) -> list[dict[str, Any]]:
    return [
        {
            "cell": cell,
            "repeat": repeat,
            "arrival_s": one.asked.arrival_s,
            "sent_s": one.sent_s,
            "ttft_s": one.ttft_s,
            "tpot_s": one.tpot_s,
            "e2e_s": one.e2e_s,
            "prompt": one.prompt,
            "output": one.output,
            "error": one.error,
        }
        for one in measured.outcomes
    ]


def render(outcomes: Outcomes) -> Group:
    """The table that a person sees, with what is flagged, found and left out below it."""
    shown = [column for column in _COLUMNS if any(column[1] in one.estimates for one in outcomes.cells)]
    table = Table(
        title=Text("mean of the repeats ± half of its 95% interval; times in ms"), title_justify="left", box=SIMPLE_HEAD, pad_edge=False
    )
    table.add_column("cell", no_wrap=True)
    for heading, *_ in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    for one in outcomes.cells:
        cells = (Text(_cell(one.estimates.get(name), scale, interval=interval)) for _, name, scale, interval in shown)
        table.add_row(Text(one.cell.name + ("" if one.comparable else " !")), *cells, style="" if one.comparable else "red")
    lines = [Text(f"{one.cell.name} ! {flag.kind}: {flag.text}", style="red") for one in outcomes.cells for flag in one.flags]
    found = [Text(_found(one)) for one in outcomes.found]
    return Group(table, *lines, *found, *(Text(note, style="yellow") for note in outcomes.notes))


def _cell(value: Estimate | None, scale: float, *, interval: bool) -> str:
    if value is None:
        return ""
    mean = _digits(scale * value.mean, 3)
    if not interval or value.low is None or value.high is None:
        return mean
    return f"{mean} ±{_digits(scale * (value.high - value.low) / 2, 2)}"


def _digits(value: float, count: int) -> str:
    """A number with `count` significant digits, and never fewer before its point, for a person."""
    return f"{value:,.0f}" if value >= 10**count else f"{value:.{count}g}"


def _found(one: Found) -> str:
    low, high = one.rates.sustained, one.rates.not_sustained
    held = f"sustains {low:g} requests/s" if low is not None else "sustains no rate that was tried"
    return f"saturation at {one.prompt}/{one.output} tokens: {held}" + (f", not {high:g}" if high is not None else "")
