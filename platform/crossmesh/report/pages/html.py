"""The report as one HTML file: no network, one small script whose digest the page names, the same bytes for the same results.

The templates beside this file hold the layout; text from outside is escaped by them. Charts are `charts` and `sweep_charts`, sentences are
`findings`, tables are `sheets`.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from crossmesh.report.charts import sweep as sweep_charts
from crossmesh.report.charts.runs import BARS, PAGE, loss_chart, rated_runs, score_chart, series_numbers, speed_chart, svg
from crossmesh.report.findings import findings, headline, largest_loss_gap, lead, main_result, small
from crossmesh.report.gate.comparable import Comparison
from crossmesh.report.tables.cells import SOURCE_MARKS, SOURCES
from crossmesh.report.tables.examples import examples
from crossmesh.report.tables.sheets import MOST_ROWS, Computed, difference_rows, gaps, tables
from crossmesh.report.variants import SCOPES, Results, split_name

_WIDE, _HALF, _NARROW = 1000, 470, 330
"""Chart widths in CSS pixels: the page, half of it, a phone."""
_FEW = 6
"""Most runs that are told apart by colour."""
_LONGEST_LINE = 110
_LONGEST_RECORD = 60_000
_MOST_RECORDS = 12
_RECORDS = {
    "science": "What was learnt: data, order, adapter, optimizer, precision.",
    "system": "What only changes speed: hardware, mesh, micro-batch, backend.",
    "evaluation": "How it was examined: task, sampling, engine.",
    "workload": "What a server was asked.",
    "server": "What was served, by what.",
    "provenance": "What it was made with: versions, source, host.",
    "surroundings": "What was there when it was examined and decided no answer: host, versions, files.",
}


@dataclass(frozen=True)
class _Figure:
    """A chart at two widths with the words that stand for it."""

    title: str
    caption: str
    draw: Callable[[int], str]
    """SVG of ours by width; the only text that the template does not escape."""
    whole: bool = False
    """As wide as the page."""

    @property
    def wide(self) -> str:
        """For a desk."""
        return self.draw(_WIDE if self.whole else _HALF)

    @property
    def narrow(self) -> str:
        """For a phone."""
        return self.draw(_NARROW)


@dataclass(frozen=True)
class _RecordView:
    """One record as text, and whom it belongs to."""

    scope: str
    about: str
    names: str
    fingerprint: str
    text: str


def render_html(results: Results, comparison: Comparison, found: Computed) -> str:
    """Return the page."""
    # Escaping is on for every file, whatever its name ends with.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    script = environment.get_template("script.js.jinja").render()
    records, left = _record_views(results)
    tracked = [one for one in results.variants if one.run_id]
    return environment.get_template("template.html.jinja").render(
        results=results,
        comparison=comparison,
        answer=main_result(results, comparison, found),
        headline=headline(comparison),
        marks=SOURCE_MARKS,
        lead=lead(results, comparison),
        findings=findings(results, comparison, found),
        break_evens=found.break_evens,
        examples=examples(results),
        differences=list(difference_rows(comparison, len(results.variants))),
        tables=tables(results, comparison, found),
        empty=gaps(found),
        sources=SOURCES,
        series=series_numbers(results),
        figures=_in_pairs(tuple(_figures(results, comparison))),
        groups=comparison.groups[:MOST_ROWS],
        tracked=tracked[:MOST_ROWS],
        tracked_left=max(0, len(tracked) - MOST_ROWS),
        records=records,
        records_left=left,
        script=script,
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _in_pairs(figures: tuple[_Figure, ...]) -> tuple[_Figure, ...]:
    """Let the last of an odd number of half-wide charts have the whole width."""
    halves = [one for one in figures if not one.whole]
    last = halves[-1] if len(halves) % 2 else None
    return tuple(replace(one, whole=True) if one is last else one for one in figures)


def _figures(results: Results, comparison: Comparison) -> Iterator[_Figure]:
    if results.splits and len(results.variants) <= BARS:
        caption = "pass@1 with its interval: " + "; ".join(_score_words(results))
        yield _Figure("Problems solved", caption, partial(score_chart, results))
    rated = rated_runs(results)
    if rated and len(results.trained) <= _FEW:
        rates = ", ".join(
            f"{one.name} {rate:,.0f} tokens/s in {training.seconds:,.0f} s{' (emulated)' if one.emulated else ''}"
            for one, training, rate in rated
        )
        caption = f"Real tokens, padding not counted: {rates}. One run each."
        yield _Figure("Training speed", caption, partial(speed_chart, results))
    yield from _sweep_figures(results, comparison)
    if results.trained:
        caption = _loss_words(results)
        yield _Figure("Training loss", caption, partial(loss_chart, results), whole=True)


def _sweep_figures(results: Results, comparison: Comparison) -> Iterator[_Figure]:
    """What many runs show that two do not. Speeds are set side by side only within what the gate lets through: the largest class."""
    together = max(comparison.gates["speed"].classes, key=len, default=())
    names = frozenset(together)
    within = f" Of the {len(names)} runs of group {_letter(comparison, together)}." if len(comparison.groups) > 1 else ""
    points = [one for one in sweep_charts.points(results) if one.name in names]
    if panels := sweep_charts.heat_panels(points):
        best = max(points, key=lambda one: one.rate)
        caption = f"Real tokens per second; the fastest of each panel is framed. Overall {best.name}: {best.rate:,.0f} tokens/s.{within}"
        draw = partial(sweep_charts.draw_heat, panels=panels, palette=PAGE)
        yield _drawn("Speed by mesh and micro-batch", caption, draw, sweep_charts.heat_height(panels), "heat")
    offers = sweep_charts.offers(results, names)
    if len(offers) > 2:
        said = "; ".join(f"{one.name} {one.hours:.3g} h" + (f", {one.usd:.3g} USD" if one.usd is not None else "") for one in
                         sweep_charts.front(offers, results.matters)[:5])  # fmt: skip
        unpriced = (
            "" if all(one.usd is not None for one in offers) else " There is no price for all of this hardware, so loss stands for it."
        )
        solved = " The area of a dot is the share of problems solved." if any(one.score is not None for one in offers) else ""
        title = "Time, price and quality" if not unpriced else "Time and quality"
        caption = (
            f"For a million real tokens, one run each. On the Pareto front, by differences that matter: {said}.{unpriced}{solved}{within}"
        )
        if len(offers) > sweep_charts.DOTS:
            caption += f" Drawn are the front and {sweep_charts.DOTS} of {len(offers):,} runs, evenly by time."
        yield _drawn(title, caption, partial(sweep_charts.draw_offers, found=offers, palette=PAGE, matters=results.matters), 340, "offers")
    if lines := sweep_charts.scaling_lines(points):
        caption = "Best real tokens per second of each number of devices; dashed: in proportion." + within
        yield _drawn("Speed over devices", caption, partial(sweep_charts.draw_measured_scaling, lines=lines, palette=PAGE), 320, "scaling")
    if len(systems := sweep_charts.owned(results)) > 1:
        hours = max(results.hours)
        caption = "Training and serving together. " + "; ".join(
            f"{one.name}: {one.usd(hours):,.2f} USD after {hours:g} h" for one in systems
        )
        draw = partial(sweep_charts.draw_owned, systems=systems, hours=hours, palette=PAGE)
        yield _drawn("Total cost over hours of serving", f"{caption}.", draw, 320, "owned")


def _drawn(title: str, caption: str, draw: Callable[[Any], None], height: int, name: str) -> _Figure:
    return _Figure(title, caption, lambda width: svg(draw, width, height, name))


def _letter(comparison: Comparison, names: tuple[str, ...]) -> str:
    return next((group.letter for group in comparison.groups if set(names) <= set(group.names)), "")


def _score_words(results: Results) -> list[str]:
    words = []
    for split in results.splits:
        scores = [(variant.name, variant.score(split)) for variant in results.variants]
        said = ", ".join(f"{name} {s.value:.1%} ({s.low:.1%} to {s.high:.1%})" for name, s in scores if s is not None)
        words.append(f"{split_name(split)}: {said}")
    return words


def _loss_words(results: Results) -> str:
    finals = [(v.training.final_loss, v.name) for v in results.trained if v.training is not None]
    if len(finals) > _FEW:
        low, high = min(finals), max(finals)
        said = f"from {low[0]:.4f} ({low[1]}) to {high[0]:.4f} ({high[1]})"
    else:
        said = ", ".join(f"{name} {loss:.4f}" for loss, name in finals)
    furthest = largest_loss_gap(results.trained) if len(finals) <= _FEW else None
    apart = (
        f" The lower panel is the largest minus the smallest loss of a step, at most {small(furthest[1])}."
        if furthest and furthest[1]
        else ""
    )
    read = sum(bool(v.training.losses) for v in results.trained if v.training is not None)
    some = "" if read == len(results.trained) else f" Drawn are {read} of {len(results.trained):,} runs, evenly by their last loss."
    return f"Loss by optimizer step in nats per loss token; at the end: {said}.{apart}{some}"


def _record_views(results: Results) -> tuple[tuple[_RecordView, ...], int]:
    """Return every distinct record once, with whom it belongs to, and how many more there are than fit."""
    views: list[_RecordView] = []
    left = 0
    for scope in SCOPES:
        owners: dict[str, list[str]] = {}
        values: dict[str, Mapping[str, Any]] = {}
        for variant in results.variants:
            value: Mapping[str, Any] | None = getattr(variant.record, scope)
            fingerprint = variant.record.fingerprint(scope)
            if value and fingerprint is not None:
                owners.setdefault(fingerprint, []).append(variant.name)
                values.setdefault(fingerprint, value)
        shown = list(owners)[:_MOST_RECORDS]
        left += len(owners) - len(shown)
        views += [_RecordView(scope, _RECORDS[scope], _names(owners[key]), key, _record_text(values[key])) for key in shown]
    return tuple(views), left


def _names(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{len(names)} runs"


def _record_text(value: Mapping[str, Any]) -> str:
    text = readable_json(value)
    if len(text) <= _LONGEST_RECORD:
        return text
    return f"{text[:_LONGEST_RECORD]}\n... {len(text) - _LONGEST_RECORD:,} more characters; the whole record is an artifact of the run."


def readable_json(value: Any, indent: str = "") -> str:
    """Return JSON in which whatever fits on a line stands on one line, and long lists of plain values fill their lines."""
    short = json.dumps(value, ensure_ascii=False, sort_keys=True)
    if len(indent) + len(short) <= _LONGEST_LINE or not isinstance(value, Mapping | list | tuple) or not value:
        return short
    inner = f"{indent}  "
    if isinstance(value, Mapping):
        parts = [f"{json.dumps(str(key), ensure_ascii=False)}: {readable_json(value[key], inner)}" for key in sorted(value)]
        opening, closing = "{", "}"
    else:
        parts = [readable_json(item, inner) for item in value]
        opening, closing = "[", "]"
        if not any(isinstance(item, Mapping | list | tuple) for item in value):
            parts = _filled(parts, _LONGEST_LINE - len(inner))
    body = f",\n{inner}".join(parts)
    return f"{opening}\n{inner}{body}\n{indent}{closing}"


def _filled(parts: list[str], width: int) -> list[str]:
    """Join neighbours with commas as long as a line has room."""
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 3 <= width:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return lines
