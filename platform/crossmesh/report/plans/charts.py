"""The charts of a plan: price against time, memory by kind, speed over chips. Each draws in the colours it is given."""

from collections.abc import Sequence
from typing import Any

from crossmesh.plan.record import PlanRecord
from crossmesh.report.charts.runs import Palette

_GIB = 1 << 30
_BARS = 12
"""Points of which the memory is shown."""


def priced_records(records: Sequence[PlanRecord]) -> list[PlanRecord]:
    """Fitting points with a price."""
    return [one for one in records if one.fits and one.usd_per_million_tokens is not None and one.workload == "train"]


def scaled(records: Sequence[PlanRecord]) -> dict[str, list[tuple[int, float]]]:
    """By kind of chip: (chips, best tokens/s), for kinds that are there in more than one number."""
    best: dict[str, dict[int, float]] = {}
    for one in records:
        if one.fits and one.tokens_per_s:
            kind = one.hardware.rpartition("_")[0]
            sizes = best.setdefault(kind, {})
            sizes[one.chips] = max(sizes.get(one.chips, 0.0), one.tokens_per_s)
    return {kind: sorted(sizes.items()) for kind, sizes in best.items() if len(sizes) > 1}


def shown_in_memory(records: Sequence[PlanRecord]) -> list[PlanRecord]:
    """The points whose memory is drawn: those of the front, then the fastest, then the rejected with figures."""
    known = [one for one in records if one.memory]
    return sorted(known, key=lambda one: (not one.pareto, not one.fits, one.step_seconds or 0.0))[:_BARS]


def draw_pareto(figure: Any, records: Sequence[PlanRecord], palette: Palette) -> None:
    """Price against time of a million real tokens, one colour a slice; the front is joined."""
    axis = figure.subplots()
    points = priced_records(records)
    names = list(dict.fromkeys(one.hardware for one in points))
    for number, name in enumerate(names):
        own = [one for one in points if one.hardware == name]
        color = palette.series[1 + number % (len(palette.series) - 1)]
        axis.plot(
            [_hours(one) for one in own], [one.usd_per_million_tokens for one in own], "o", color=color, markersize=5, label=name, alpha=0.8
        )
    front = sorted((one for one in points if one.pareto), key=_hours)
    axis.plot(
        [_hours(one) for one in front],
        [one.usd_per_million_tokens for one in front],
        "o-",
        color=palette.ink,
        markersize=9,
        markerfacecolor="none",
        linewidth=1.5,
        label="Pareto front",
    )
    axis.set_xlabel("hours for a million real tokens")
    axis.set_ylabel("USD for a million real tokens")
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, labelcolor=palette.ink)


def _hours(one: PlanRecord) -> float:
    """Hours for a million real tokens."""
    return 1e6 / (one.tokens_per_s or 1.0) / 3600


def draw_memory(figure: Any, records: Sequence[PlanRecord], palette: Palette) -> None:
    """Memory of a chip by kind, one bar a point, and what a program can have."""
    axis = figure.subplots()
    shown = shown_in_memory(records)
    kinds = list(dict.fromkeys(kind for one in shown for kind in one.memory))
    for row, one in enumerate(shown):
        left = 0.0
        for number, kind in enumerate(kinds):
            width = one.memory.get(kind, 0.0) / _GIB
            color = palette.series[number % len(palette.series)]
            axis.barh([row], [width], left=left, height=0.6, color=color, label=kind.replace("_", " ") if row == 0 else None)
            left += width
        if one.hbm_available_bytes:
            limit = one.hbm_available_bytes / _GIB
            axis.plot([limit, limit], [row - 0.4, row + 0.4], color=palette.ink, linewidth=2)
    axis.set_yticks(range(len(shown)), [one.label for one in shown])
    axis.set_ylim(len(shown) - 0.4, -0.6)
    axis.grid(visible=False, axis="y")
    axis.tick_params(axis="y", labelcolor=palette.ink)
    axis.set_xlabel("GiB of a chip; the mark is what a program can have")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, labelcolor=palette.ink)


def draw_planned_scaling(figure: Any, records: Sequence[PlanRecord], palette: Palette) -> None:
    """Best tokens per second by number of chips, one line a kind of chip."""
    axis = figure.subplots()
    for number, (kind, points) in enumerate(scaled(records).items()):
        color = palette.series[1 + number % (len(palette.series) - 1)]
        axis.plot([chips for chips, _ in points], [rate for _, rate in points], "o-", color=color, label=kind)
    axis.set_xlabel("chips")
    axis.set_ylabel("real tokens/s")
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, labelcolor=palette.ink)
