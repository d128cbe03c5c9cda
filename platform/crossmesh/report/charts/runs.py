"""The charts of a report as inline SVG: deterministic text whose colours are CSS variables of the page, so light, dark and print follow.

matplotlib draws; it is imported here, when a chart is drawn. Each chart takes its width in CSS pixels, because text that scales with
the picture is too small on a phone.
"""

import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from crossmesh.report.findings import loss_gaps
from crossmesh.report.variants import Results, TrainingSummary, Variant, split_name

_INK, _MUTED, _GRID = "#010203", "#010204", "#010205"
_SERIES = ("#020300", "#020301", "#020302", "#020303", "#020304", "#020305", "#020306")
"""Placeholders; entry 0 is a variant that was not trained."""
_VARIABLES = {
    _INK: "var(--ink)",
    _MUTED: "var(--muted)",
    _GRID: "var(--line)",
    **{color: f"var(--series-{number})" for number, color in enumerate(_SERIES)},
}
_DASHES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 3)), (0, (8, 3)))
_POINTS_PER_PIXEL = 0.75
_DPI = 72
_TEXT_PX = 13
_POINTS = 150
"""Most points of a curve."""
BARS = 12
"""Most variants that a chart names one by one."""


@dataclass(frozen=True)
class Palette:
    """Colours of a chart."""

    ink: str
    muted: str
    grid: str
    series: tuple[str, ...]


PAGE = Palette(_INK, _MUTED, _GRID, _SERIES)
"""Placeholders that become CSS variables of the page."""
PAPER = Palette("#161b22", "#57606c", "#dde1e7", ("#6b7684", "#c8501a", "#1d5fd6", "#0b7f6c", "#8a3fc0", "#94700a", "#b3256e"))
"""The page's colours in light."""


def series_numbers(results: Results) -> dict[str, int]:
    """Return the colour of each variant: 0 for those not trained, then 1, 2, ... in order."""
    trained = {variant.name: 1 + index % (len(_SERIES) - 1) for index, variant in enumerate(results.trained)}
    return {variant.name: trained.get(variant.name, 0) for variant in results.variants}


def loss_chart(results: Results, width: int) -> str:
    """Draw training loss by step, one line a variant, and under it how far they are apart; of many only the lowest stands out."""
    few = len(results.trained) <= len(_DASHES)
    gaps = [(step, value) for step, value in loss_gaps(results.trained) if value > 0] if few else []

    def draw(figure: Any) -> None:
        axes = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1)) if gaps else [figure.subplots()]
        if few:
            numbers = series_numbers(results)
            for order, variant in enumerate(results.trained):
                own = _Line(_SERIES[numbers[variant.name]], 2 + 1.5 * (len(results.trained) - 1 - order), _DASHES[order % len(_DASHES)])
                _loss_line(axes[0], variant, own, variant.name)
        else:
            _many_lines(axes[0], results.trained)
        axes[0].set_ylabel("loss, nats/token")
        axes[0].set_ylim(bottom=0)
        legend(axes[0], PAGE, handlelength=3)
        axes[-1].set_xlabel("optimizer step")
        axes[-1].xaxis.get_major_locator().set_params(integer=True)
        if gaps:
            axes[1].plot([step for step, _ in gaps], [value for _, value in gaps], color=_MUTED, linewidth=1.5)
            axes[1].set_yscale("log")
            axes[1].yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes[1].yaxis.get_major_locator().set_params(numticks=4)
            axes[1].minorticks_off()
            axes[1].set_ylabel("apart, nats")

    return svg(draw, width, 340 if gaps else 260, "loss")


@dataclass(frozen=True)
class _Line:
    """How a curve is drawn. Curves of like runs lie on each other, so earlier ones are wider and later ones dashed."""

    color: str
    width: float
    style: Any = "solid"
    alpha: float = 1.0


def _many_lines(axis: Any, variants: Sequence[Variant]) -> None:
    """All curves that were read faintly, and the one that ends lowest."""
    variants = [one for one in variants if one.training is not None and one.training.losses]
    ends = {variant.name: variant.training.final_loss for variant in variants if variant.training is not None}
    best = min(ends, key=lambda name: ends[name] if math.isfinite(ends[name]) else math.inf, default="")
    faint = [_curve(one.training) for one in variants if one.name != best and one.training is not None]
    if faint:
        from matplotlib.collections import LineCollection  # One artist: two hundred of their own take a second.

        axis.add_collection(LineCollection(faint, colors=_MUTED, linewidths=0.8, alpha=max(0.05, min(0.35, 8 / len(variants)))))
        axis.autoscale_view()
    for variant in variants:
        if variant.name == best:
            _loss_line(axis, variant, _Line(_SERIES[1], 2.2), "lowest at the end")


def _loss_line(axis: Any, variant: Variant, own: _Line, label: str | None) -> None:
    """Draw one curve, with no more points than a page can show."""
    if variant.training is None:
        return
    kept = _curve(variant.training)
    axis.plot(
        [step for step, _ in kept],
        [loss for _, loss in kept],
        color=own.color,
        linewidth=own.width,
        linestyle=own.style,
        alpha=own.alpha,
        label=label,
    )


def _curve(training: TrainingSummary) -> list[tuple[int, float]]:
    finite = [(step, loss) for step, loss in training.losses if math.isfinite(loss)]
    every = max(1, -(-len(finite) // _POINTS))
    return finite[::every] + (finite[-1:] if every > 1 else [])


def score_chart(results: Results, width: int) -> str:
    """Draw pass@1 with its interval, one panel a split, one line a variant."""
    splits = [split for split in results.splits if any(variant.score(split) for variant in results.variants)]
    rows = len(results.variants)

    def draw(figure: Any) -> None:
        panels = figure.subplots(len(splits), 1, sharex=True, squeeze=False)[:, 0]
        numbers = series_numbers(results)
        for axis, split in zip(panels, splits, strict=True):
            problems = max(score.problems for variant in results.variants if (score := variant.score(split)))
            axis.set_title(f"{split_name(split)}, {problems} problems", loc="left", color=_INK, fontsize=_TEXT_PX * _POINTS_PER_PIXEL)
            for row, variant in enumerate(results.variants):
                score = variant.score(split)
                if score is None:
                    continue
                color = _SERIES[numbers[variant.name]]
                axis.plot([100 * score.low, 100 * score.high], [row, row], color=color, linewidth=3, solid_capstyle="round", alpha=0.45)
                axis.plot([100 * score.value], [row], "o", color=color, markersize=7, clip_on=False)
                axis.annotate(f"{100 * score.value:.1f}%", (106, row), va="center", color=_INK, annotation_clip=False)
            _name_rows(axis, [variant.name for variant in results.variants], width)
            axis.set_ylim(rows - 0.4, -0.6)
            axis.set_xlim(0, 100)
            axis.grid(visible=False, axis="y")
            axis.tick_params(axis="y", labelcolor=_INK)
        panels[-1].set_xlabel("problems solved at the first answer, %")

    return svg(draw, width, 60 + (44 + 34 * rows) * len(splits), "score")


def _name_rows(axis: Any, names: Sequence[str], width: int) -> None:
    """Name the rows of a chart `width` pixels wide: beside them, or over them where that would take too much of it."""
    if 0.55 * _TEXT_PX * max(map(len, names)) < 0.3 * width:
        axis.set_yticks(range(len(names)), names)
        return
    axis.set_yticks([])
    for row, name in enumerate(names):
        axis.annotate(
            name, (0, row - 0.34), xycoords=("axes fraction", "data"), va="bottom", color=_INK, fontsize=0.85 * _TEXT_PX * _POINTS_PER_PIXEL
        )


def rated_runs(results: Results) -> list[tuple[Variant, TrainingSummary, float]]:
    """Trainings whose times may be shown, with the rate of each; without those that were never on all their slices."""
    trained = [(variant, variant.training) for variant in results.timed]
    return [(variant, training, training.tokens_per_s) for variant, training in trained if training and training.tokens_per_s is not None]


def speed_chart(results: Results, width: int) -> str:
    """Draw real training tokens a second and the wall clock of training, one bar a trained variant that has a rate."""
    trained = rated_runs(results)
    panels = (
        ("speed, real tokens per second", [rate for _, _, rate in trained]),
        ("time of all steps, seconds", [training.seconds for _, training, _ in trained]),
    )

    def draw(figure: Any) -> None:
        numbers = series_numbers(results)
        for axis, (title, values) in zip(figure.subplots(len(panels), 1), panels, strict=True):
            top = max([value for value in values if math.isfinite(value)], default=0.0) or 1.0
            axis.set_title(title, loc="left", color=_INK, fontsize=_TEXT_PX * _POINTS_PER_PIXEL)
            for row, ((variant, _, _), value) in enumerate(zip(trained, values, strict=True)):
                axis.barh([row], [value], height=0.55, color=_SERIES[numbers[variant.name]])
                axis.annotate(f"{value:,.0f}", (value + 0.02 * top, row), va="center", color=_INK)
            _name_rows(axis, [variant.name for variant, _, _ in trained], width)
            axis.set_ylim(len(trained) - 0.4, -0.6)
            axis.set_xlim(0, 1.2 * top)
            axis.grid(visible=False, axis="y")
            axis.tick_params(axis="y", labelcolor=_INK)

    return svg(draw, width, 40 + (56 + 36 * len(trained)) * len(panels), "speed")


def legend(axis: Any, palette: Palette, **options: Any) -> None:
    """Name what is drawn, without pushing the chart aside where names are long."""
    axis.legend(frameon=False, labelcolor=palette.ink, **options).set_in_layout(False)


def svg(draw: Callable[[Any], None], width: int, height: int, name: str) -> str:
    """Render a figure of `width` by `height` CSS pixels, drawn in `PAGE`'s colours, as an SVG element for a page that holds several."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    stream = io.StringIO()
    with _figure(PAGE, width, height, f"{name}-{width}") as figure:
        canvas = FigureCanvasSVG(figure)
        draw(figure)
        figure.patch.set_visible(False)
        for axis in figure.axes:
            axis.patch.set_visible(False)
        canvas.print_svg(stream, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _inline(stream.getvalue(), f"{name}-{width}")


def png(draw: Callable[[Any], None], width: int, height: int) -> bytes:
    """Render a figure of `width` by `height` CSS pixels as a PNG of twice as many; drawn in `PAPER`'s colours."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    stream = io.BytesIO()
    with _figure(PAPER, width, height, "png") as figure:
        FigureCanvasAgg(figure)
        draw(figure)
        figure.savefig(stream, format="png", dpi=2 * _DPI / _POINTS_PER_PIXEL, metadata={"Software": None})
    return stream.getvalue()


@contextmanager
def _figure(palette: Palette, width: int, height: int, salt: str) -> Iterator[Any]:
    """A figure with our settings, which hold as long as it is drawn."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "svg.hashsalt": f"crossmesh-{salt}",
        "svg.fonttype": "none",
        "font.size": _TEXT_PX * _POINTS_PER_PIXEL,
        "axes.edgecolor": palette.grid,
        "axes.labelcolor": palette.muted,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.unicode_minus": False,
        "grid.color": palette.grid,
        "grid.linewidth": 0.7,
        "xtick.color": palette.grid,
        "ytick.color": palette.grid,
        "xtick.labelcolor": palette.muted,
        "ytick.labelcolor": palette.muted,
        "ytick.left": False,
        "ytick.minor.left": False,
        "text.parse_math": False,
    }
    with mpl.rc_context({**mpl.rcParamsDefault, **settings, "backend": "agg"}):
        yield Figure(figsize=(width * _POINTS_PER_PIXEL / _DPI, height * _POINTS_PER_PIXEL / _DPI), dpi=_DPI, layout="constrained")


def _inline(document: str, prefix: str) -> str:
    """Turn an SVG document into an element of a page: no header, ids that do not clash, the page's colours and font."""
    svg = document[document.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"(<svg[^>]*?) height=\"[^\"]*\"", r"\1", svg, count=1)
    svg = re.sub(r"(<svg[^>]*?) width=\"[^\"]*\"", r"\1", svg, count=1)
    svg = svg.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    svg = re.sub(r'href="#', f'href="#{prefix}-', svg)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px var(--font)", svg)
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, variable)
    return svg.strip()
