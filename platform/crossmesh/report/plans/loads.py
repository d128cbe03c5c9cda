"""How loads of requests fare on planned engines: a line a load, and latency over the rate of requests. Shows; computes nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from crossmesh.plan.record import PlanRecord
from crossmesh.report.charts.runs import Palette
from crossmesh.report.units import number_text

CAPTION = "Requests, simulated: median / 99th percentile"
COLUMNS = ("req/s", "TTFT s", "TPOT ms", "answer s", "at most")
LOAD_FIGURES = (
    "load_qps",
    *(f"{name}_seconds_{part}" for name in ("ttft", "tpot", "e2e") for part in ("mean", "p50", "p90", "p99")),
    "load_requests",
    "load_batch",
    "load_most_waiting",
    "load_preemptions",
    "load_busy_share",
    "sustained_qps",
    "sustained_tokens_per_s",
)
"""Keys of a record's `serving` that only a loaded one has."""


def loaded(records: Sequence[PlanRecord]) -> list[PlanRecord]:
    """Those with a simulated load."""
    return [one for one in records if one.serving and "load_requests" in one.serving]


def engine(record: PlanRecord) -> str:
    """What sets its engine apart from the others of a sweep, without the rate of its requests."""
    swept = [(key.rpartition(".")[2], value) for key, value in record.swept.items() if key != "plan.qps"]
    return " ".join(value if key == "hardware" else f"{key}={value}" for key, value in swept)


def load_cells(record: PlanRecord) -> tuple[str, ...]:
    """The cells of `COLUMNS` of a loaded record."""
    values = record.serving or {}
    return (
        number_text(values["load_qps"]) if "load_qps" in values else "burst",
        *(_spread(values, name, scale) for name, scale in (("ttft", 1), ("tpot", 1000), ("e2e", 1))),
        number_text(values["sustained_qps"]),
    )


def _spread(values: Mapping[str, float], name: str, scale: int) -> str:
    """Median and 99th percentile; empty where there is no such time."""
    parts = [values.get(f"{name}_seconds_{part}") for part in ("p50", "p99")]
    return " / ".join(number_text(scale * value) for value in parts if value is not None)


def load_table(records: Sequence[PlanRecord]) -> Table:
    """A line a loaded record."""
    table = Table(title=Text(CAPTION), title_justify="left")
    table.add_column("", overflow="fold")
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for one in loaded(records):
        table.add_row(Text(engine(one)), *(Text(cell) for cell in load_cells(one)))
    return table


def rated(records: Sequence[PlanRecord]) -> dict[str, list[PlanRecord]]:
    """By what sets engines apart: their loads at several rates, slowest first. Engines with one rate alone have no line."""
    engines: dict[str, list[PlanRecord]] = {}
    for one in loaded(records):
        if "load_qps" in (one.serving or {}):
            engines.setdefault(engine(one) or one.hardware, []).append(one)
    return {name: sorted(found, key=_rate) for name, found in engines.items() if len({_rate(one) for one in found}) > 1}


def draw_loads(figure: Any, records: Sequence[PlanRecord], palette: Palette) -> None:
    """Time to the first token and per token over requests a second: medians as lines, 99th percentiles dashed, one colour an engine."""
    axes = figure.subplots(1, 2)
    for axis, key, title in zip(axes, ("ttft", "tpot"), ("time to the first token, s", "time per token after it, s"), strict=True):
        for number, (name, found) in enumerate(rated(records).items()):
            color = palette.series[1 + number % (len(palette.series) - 1)]
            for part, style in (("p50", "o-"), ("p99", "o--")):
                points = [(_rate(one), (one.serving or {}).get(f"{key}_seconds_{part}")) for one in found]
                drawn = [(rate, value) for rate, value in points if value is not None]
                label = f"{name}, {part}" if key == "ttft" else None
                axis.plot([rate for rate, _ in drawn], [value for _, value in drawn], style, color=color, markersize=4, label=label)
        axis.set_xlabel("requests/s")
        axis.set_ylabel(title)
        axis.set_xlim(left=0)
    axes[0].set_yscale("log")
    axes[0].yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes[0].minorticks_off()
    axes[1].set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, labelcolor=palette.ink)


def _rate(record: PlanRecord) -> float:
    return (record.serving or {})["load_qps"]
