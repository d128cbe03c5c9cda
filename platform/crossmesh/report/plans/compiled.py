"""What compilers and traces say of planned points, and how near the model is to them. Shows; computes nothing."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from crossmesh.plan.record import PlanRecord
from crossmesh.report.units import time_text

CAPTION = "Compiled or traced: one micro-batch on one chip, and the model's figure over it"
COLUMNS = ("HBM GiB", "model's", "FLOP", "model's", "time", "model's", "by")
_GIB = 1 << 30


def compiled_records(records: Sequence[PlanRecord]) -> list[PlanRecord]:
    """Those of which a compiler or a trace says something."""
    return [one for one in records if one.compiled]


def compiled_cells(one: PlanRecord) -> tuple[str, ...]:
    """The cells of `COLUMNS` of a compiled record."""
    said, ratio = one.compiled or {}, one.agreement or {}
    return (
        f"{said['hbm_bytes'] / _GIB:.1f}",
        _ratio(ratio.get("memory")),
        f"{said['flops']:.3g}" if said["flops"] else "",
        _ratio(ratio.get("flops")),
        time_text(said["seconds"]),
        _ratio(ratio.get("seconds")),
        f"{said['by']}{', extrapolated from small depths' if said['extrapolated'] else ''}",
    )


def compiled_table(records: Sequence[PlanRecord]) -> Table:
    """A line a compiled record."""
    table = Table(title=Text(CAPTION), title_justify="left")
    table.add_column("", overflow="fold")
    for heading in COLUMNS:
        table.add_column(heading, justify="left" if heading == "by" else "right", overflow="fold")
    for one in compiled_records(records):
        table.add_row(Text(one.label), *map(Text, compiled_cells(one)))
    return table


def compiled_lines(one: PlanRecord) -> dict[str, str]:
    """The same as lines of a table of one point; empty texts where something is not known."""
    if not one.compiled:
        return {}
    memory, memory_ratio, flops, flops_ratio, time, time_ratio, by = compiled_cells(one)
    return {
        "compiled or traced by": by,
        "compiled: HBM": f"{memory} GiB; the model says {memory_ratio} times that",
        "compiled: FLOP of a micro-batch": f"{flops}; the model says {flops_ratio} times that" if flops else "",
        "compiled: time of a micro-batch": f"{time} at least; the model says {time_ratio} times that" if time else "",
    }


def _ratio(value: float | None) -> str:
    return f"{value:.2f}" if value is not None else ""
