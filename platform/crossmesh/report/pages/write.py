"""Writes a report into a folder: `report.html` for people, `report.md` for a pull request, `report.json` for scripts. All hold the same."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from crossmesh.files import write_text
from crossmesh.metrics import FINAL_LOSS, LOSS_TOKENS, MEASURED, TOKENS_PER_S
from crossmesh.report.findings import findings, headline, main_result
from crossmesh.report.gate.comparable import Comparison, compare_variants
from crossmesh.report.pages.html import render_html
from crossmesh.report.pages.markdown import render_markdown
from crossmesh.report.tables.cells import MISSING
from crossmesh.report.tables.examples import by_kind, examples
from crossmesh.report.tables.quantity import Quantity
from crossmesh.report.tables.sheets import Computed, computed
from crossmesh.report.variants import PRIMARY_SPLIT, SCOPES, Results, Score, Variant, finite

HTML_NAME, MARKDOWN_NAME, JSON_NAME = "report.html", "report.md", "report.json"
UNITS = {
    "pass_at_1": "share of problems, 0 to 1",
    "n": "problems",
    FINAL_LOSS.name: "nats per loss token",
    TOKENS_PER_S.name: "real tokens per second, padding not counted",
    "seconds": "seconds of wall clock over all steps, compilation included",
    "tokens": "real tokens",
    LOSS_TOKENS.name: "tokens under the loss mask",
    "adapter_bytes": "bytes",
}


@dataclass(frozen=True)
class Report:
    """Results with all that was made of them."""

    results: Results
    comparison: Comparison
    found: Computed

    def write(self, folder: Path) -> Path:
        """Write all files into `folder`, made if need be, and return the path of the HTML. The same results give the same bytes."""
        write_text(folder / JSON_NAME, self._json_lines())
        write_text(folder / MARKDOWN_NAME, render_markdown(self.results, self.comparison, self.found))
        write_text(folder / HTML_NAME, render_html(self.results, self.comparison, self.found))
        return folder / HTML_NAME

    def json(self) -> dict[str, Any]:
        """The report as JSON values; what a variant does not have is null, and so is the fingerprint when sciences differ."""
        return dict(self._json)

    def _json_lines(self) -> Iterator[str]:
        """The same as text, a line a key: what ten thousand runs say is never in memory as one text."""
        for number, (key, value) in enumerate(sorted(self._json.items())):
            yield f"{'{' if number == 0 else ','}\n{json.dumps(key)}: "
            yield json.dumps(value, ensure_ascii=False, allow_nan=False)
        yield "\n}\n"

    @cached_property
    def _json(self) -> dict[str, Any]:
        """Made once: of ten thousand runs it takes a second."""
        results, comparison = self.results, self.comparison
        timed = {variant.name for variant in results.timed}
        sciences = {variant.record.fingerprint("science") for variant in results.variants if variant.record.science is not None}
        return {
            "experiment": results.experiment,
            "comparable": comparison.comparable,
            "comparable_quality": comparison.quality,
            "comparable_speed": comparison.speed,
            "gates": {
                gate.aspect: {"state": gate.state, "classes": [list(one) for one in gate.classes]} for gate in comparison.gates.values()
            },
            "groups": [{"group": one.letter, "runs": list(one.names), "words": one.words} for one in comparison.groups],
            "answer": main_result(results, comparison, self.found),
            "headline": headline(comparison),
            "science_fingerprint": sciences.pop() if len(sciences) == 1 else None,
            "differences": [
                {"scope": one.scope, "key": one.key, "effect": one.effect, "values": dict(one.values)} for one in comparison.differences
            ],
            "findings": [
                {"question": one.question, "aspect": one.aspect, "verdict": one.verdict, "answer": one.answer, "reasons": list(one.reasons)}
                for one in findings(results, comparison, self.found)
            ],
            "winners": [
                {
                    "quantity": one.quantity.key,
                    "runs": len(one.names),
                    "best": one.best,
                    "second": one.second,
                    "margin": finite(one.margin.value),
                    "interval": None if one.margin.low is None else [one.margin.low, one.margin.high],
                    "relative": one.margin.relative,
                    "p_value": one.margin.p_value,
                    "method": one.margin.method,
                    "verdict": one.verdict,
                    "matters": one.matters,
                    "words": one.sentence,
                }
                for one in self.found.winners
            ],
            "matters": asdict(results.matters),
            "break_even": list(self.found.break_evens),
            "quantities": [_quantity_json(one) for one in self.found.quantities],
            "variants": {variant.name: _variant_json(variant, timed=variant.name in timed) for variant in results.variants},
            "samples": [asdict(one) for one in examples(results)],
            "kinds": _kinds_json(results),
            "notes": list(results.notes),
            "units": dict(UNITS),
            "source": MEASURED,
            "command": results.command,
        }


def make_report(results: Results) -> Report:
    """Compare all variants of `results` and compute what there is to say."""
    comparison = compare_variants(results.variants)
    return Report(results, comparison, computed(results, comparison))


def _kinds_json(results: Results) -> list[dict[str, Any]]:
    table = by_kind(results)
    names = [one.name for one in results.variants]
    rows = table.rows if table else ()
    return [
        {
            "kind": head.text,
            "problems": head.note,
            "pass_at_1": {
                name: {"value": cell.value, "words": f"{cell.text} ({cell.note})"} for name, cell in zip(names, cells, strict=True)
            },
        }
        for head, *cells in rows
    ]


def _quantity_json(one: Quantity) -> dict[str, Any]:
    cells: dict[str, dict[str, Any]] = {}
    for name, cell in one.cells.items():
        if cell.state == MISSING:
            cells[name] = {"value": None, "why": cell.text}
        else:
            estimate = one.estimates.get(name)
            interval = list(estimate.interval) if estimate and estimate.interval else None
            flags = cell.note if cell.state else ""
            cells[name] = {"value": finite(cell.value), "interval": interval, "source": cell.source, "flags": flags}
    return {"key": one.key, "section": one.section, "label": one.label, "unit": one.unit, "better": one.better, "cells": cells}


def _variant_json(variant: Variant, *, timed: bool) -> dict[str, Any]:
    score, training = variant.score(PRIMARY_SPLIT), variant.training
    return {
        "backend": variant.backend,
        "pass_at_1": score.value if score else None,
        "pass_at_1_interval": [score.low, score.high] if score else None,
        "n": score.problems if score else None,
        "splits": _splits_json(variant.scores),
        FINAL_LOSS.name: finite(training.final_loss) if training else None,
        "losses": [[step, finite(loss)] for step, loss in training.losses] if training else None,
        **({"emulated": True} if variant.emulated or variant.serving_emulated else {}),
        TOKENS_PER_S.name: finite(training.tokens_per_s) if training and timed else None,
        "seconds": finite(training.seconds) if training and timed else None,
        "tokens": training.tokens if training else None,
        LOSS_TOKENS.name: training.loss_tokens if training else None,
        "adapter_bytes": variant.adapter_bytes,
        "repeats": [asdict(one) for one in variant.repeats],
        "load": list(variant.load),
        "fingerprints": {scope: variant.record.fingerprint(scope) for scope in SCOPES},
        "run_id": variant.run_id,
        "source": MEASURED,
    }


def _splits_json(scores: tuple[Score, ...]) -> dict[str, dict[str, Any]]:
    splits: dict[str, dict[str, Any]] = {}
    for score in scores:
        splits.setdefault(score.split, {"n": score.problems})[f"pass_at_{score.k}"] = {
            "value": score.value,
            "low": score.low,
            "high": score.high,
            "level": score.level,
            "method": score.method,
        }
    return splits
