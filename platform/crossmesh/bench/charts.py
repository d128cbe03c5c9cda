"""Charts of a benchmark as PNG: figures against the load where there are several, times of all requests where there is one cell."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crossmesh.bench.runner import CellResult
from crossmesh.config.bench import WORKLOADS
from crossmesh.metrics import GOODPUT, OUTPUT_TOKENS_PER_S, TPOT_P50, TTFT_P50

_FIGURES = (
    ("ttft", TTFT_P50.name, "time to first token, median (s)"),
    ("tpot", TPOT_P50.name, "time per output token, median (s)"),
    ("throughput", OUTPUT_TOKENS_PER_S.name, "output tokens/s"),
    ("goodput", GOODPUT.name, "requests/s within the limits"),
)
_SIZE = (8.0, 4.5)
_MOST_CURVES = 8


def draw_charts(cells: Sequence[CellResult], folder: Path) -> None:
    """Write the charts of `cells` into `folder`; flagged cells are hollow."""
    lines: dict[tuple[int, int], list[CellResult]] = defaultdict(list)
    for one in cells:
        lines[one.cell.prompt, one.cell.output].append(one)
    if any(len(line) > 1 for line in lines.values()):
        for name, figure, label in _FIGURES:
            if all(figure in one.estimates for one in cells):
                _against_load(folder / f"{name}.png", lines, figure, label)
    if len(cells) <= _MOST_CURVES:
        _distributions(folder / "times.png", cells)


def _against_load(file: Path, lines: dict[tuple[int, int], list[CellResult]], figure: str, label: str) -> None:
    def draw(axis: Any) -> None:
        for (prompt, output), line in sorted(lines.items()):
            ordered = sorted(line, key=lambda one: one.cell.value)
            values = [one.cell.value for one in ordered]
            found = [one.estimates[figure] for one in ordered]
            drawn = axis.plot(values, [one.mean for one in found], label=f"{prompt}/{output} tokens")[0]
            for one, value, estimate in zip(ordered, values, found, strict=True):
                face = drawn.get_color() if one.comparable else "white"
                axis.plot([value], [estimate.mean], "o", color=drawn.get_color(), markerfacecolor=face)
                if estimate.low is not None:
                    axis.plot([value, value], [estimate.low, estimate.high], color=drawn.get_color(), alpha=0.5)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_xlabel(WORKLOADS.load(next(iter(lines.values()))[0].cell.load).axis)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.legend(frameon=False)

    _save(file, draw)


def _distributions(file: Path, cells: Sequence[CellResult]) -> None:
    """Part of the requests within a time, for each cell: to the first token, and to the last."""

    def draw(axis: Any) -> None:
        for one in cells:
            answered = [outcome for measured in one.measurements for outcome in measured.answered]
            if not answered:
                continue
            shares = [(index + 1) / len(answered) for index in range(len(answered))]
            drawn = axis.plot(sorted(outcome.ttft_s for outcome in answered), shares, label=one.cell.name)[0]
            axis.plot(sorted(outcome.e2e_s for outcome in answered), shares, color=drawn.get_color(), linestyle=(0, (4, 2)))
        axis.set_xscale("log")
        axis.set_xlabel("seconds to the first token (solid) and to the last (dashed)")
        axis.set_ylabel("part of the requests")
        axis.legend(frameon=False, fontsize=7)

    _save(file, draw)


def _save(file: Path, draw: Any) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    axis = figure.subplots()
    draw(axis)
    axis.grid(visible=True, alpha=0.3)
    figure.savefig(file, dpi=120, metadata={"Software": None})
