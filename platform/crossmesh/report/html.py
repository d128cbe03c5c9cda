"""The report as one HTML file: no network, no script, the same bytes for the same results.

The template beside this file holds the layout; text from outside is escaped by it. Charts are `charts`, sentences are `findings`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from crossmesh.report.charts import loss_chart, score_chart, series_numbers, speed_chart
from crossmesh.report.comparable import Comparison
from crossmesh.report.findings import findings, headline, largest_loss_gap, small
from crossmesh.report.rows import table_rows
from crossmesh.report.variants import Results, split_name

_WIDE, _HALF, _NARROW = 1000, 470, 330
"""Chart widths in CSS pixels: the page, half of it, a phone."""
_LONGEST_LINE = 110
_LONGEST_RECORD = 60_000
_RECORDS = {
    "science": "What was learnt: data, order, adapter, optimizer, precision.",
    "system": "What only changes speed: hardware, mesh, micro-batch, backend.",
    "evaluation": "How it was examined: task, sampling, engine.",
    "provenance": "What it was made with: versions, source, host.",
}


@dataclass(frozen=True)
class _Figure:
    """A chart at two widths with the words that stand for it."""

    title: str
    caption: str
    wide: str
    """SVG of ours; the only text that the template does not escape."""
    narrow: str


@dataclass(frozen=True)
class _RecordView:
    """One record as text, and whom it belongs to."""

    scope: str
    about: str
    names: str
    fingerprint: str
    text: str


def render_html(results: Results, comparison: Comparison) -> str:
    """Return the page."""
    # Escaping is on for every file, whatever its name ends with.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("template.html.jinja").render(
        results=results,
        comparison=comparison,
        headline=headline(comparison),
        findings=findings(results, comparison),
        rows=table_rows(results),
        series=series_numbers(results),
        figures=_figures(results),
        records=_record_views(results),
        difference_names=[v.name for v in results.variants if any(v.name in one.values for one in comparison.differences)],
    )


def _figures(results: Results) -> tuple[_Figure, ...]:
    figures = []
    if results.splits:
        caption = "pass@1 with its interval: " + "; ".join(_score_words(results))
        figures.append(_Figure("Problems solved", caption, score_chart(results, _HALF), score_chart(results, _NARROW)))
    if results.trained:
        rates = ", ".join(
            f"{v.name} {v.training.tokens_per_s:,.0f} tokens/s in {v.training.seconds:,.0f} s" for v in results.trained if v.training
        )
        caption = f"Real tokens, padding not counted: {rates}. One run each, so without intervals."
        figures.append(_Figure("Training speed", caption, speed_chart(results, _HALF), speed_chart(results, _NARROW)))
        figures.append(_Figure("Training loss", _loss_words(results), loss_chart(results, _WIDE), loss_chart(results, _NARROW)))
    return tuple(figures)


def _score_words(results: Results) -> list[str]:
    words = []
    for split in results.splits:
        scores = [(variant.name, variant.score(split)) for variant in results.variants]
        said = ", ".join(f"{name} {s.value:.1%} ({s.low:.1%} to {s.high:.1%})" for name, s in scores if s is not None)
        words.append(f"{split_name(split)}: {said}")
    return words


def _loss_words(results: Results) -> str:
    finals = ", ".join(f"{v.name} {v.training.final_loss:.4f}" for v in results.trained if v.training is not None)
    furthest = largest_loss_gap(results.trained)
    apart = f" The lower panel is the largest minus the smallest loss of a step, at most {small(furthest[1])}." if furthest else ""
    return f"Loss by optimizer step in nats per loss token; at the end: {finals}.{apart}"


def _record_views(results: Results) -> tuple[_RecordView, ...]:
    """Return every distinct record once, with the names of the variants that share it."""
    views = []
    for scope, about in _RECORDS.items():
        owners: dict[str, list[str]] = {}
        texts: dict[str, str] = {}
        for variant in results.variants:
            value: Mapping[str, Any] | None = getattr(variant.record, scope)
            fingerprint = variant.record.fingerprint(scope)
            if not value or fingerprint is None:
                continue
            owners.setdefault(fingerprint, []).append(variant.name)
            texts[fingerprint] = _record_text(value)
        views += [_RecordView(scope, about, ", ".join(names), key, texts[key]) for key, names in owners.items()]
    return tuple(views)


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
