"""Writes a report into a folder: `report.html` for people, `report.json` for scripts. Both hold the same results."""

from pathlib import Path
from typing import Any

from crossmesh.files import write_json, write_text
from crossmesh.report.comparable import Comparison, compare
from crossmesh.report.findings import findings, headline
from crossmesh.report.html import render_html
from crossmesh.report.rows import MEASURED
from crossmesh.report.variants import PRIMARY_SPLIT, Results, Score, Variant, finite

HTML_NAME = "report.html"
JSON_NAME = "report.json"
UNITS = {
    "pass_at_1": "share of problems, 0 to 1",
    "n": "problems",
    "final_loss": "nats per loss token",
    "tokens_per_s": "real tokens per second, padding not counted",
    "seconds": "seconds of wall clock over all steps, compilation included",
    "tokens": "real tokens",
    "loss_tokens": "tokens under the loss mask",
    "adapter_bytes": "bytes",
}


def compare_results(results: Results) -> Comparison:
    """Return the verdict on all variants of `results`."""
    return compare([variant.record for variant in results.variants])


def write_report(results: Results, folder: Path) -> Path:
    """Write both files into `folder`, made if need be, and return the path of the HTML. The same results give the same bytes."""
    comparison = compare_results(results)
    page = render_html(results, comparison)
    write_json(folder / JSON_NAME, report_json(results, comparison))
    write_text(folder / HTML_NAME, page)
    return folder / HTML_NAME


def report_json(results: Results, comparison: Comparison) -> dict[str, Any]:
    """Return the report as JSON values; what a variant does not have is null, and so is the fingerprint when sciences differ."""
    sciences = {variant.record.fingerprint("science") for variant in results.variants if variant.record.science is not None}
    return {
        "experiment": results.experiment,
        "comparable": comparison.comparable,
        "comparable_quality": comparison.quality,
        "comparable_speed": comparison.speed,
        "headline": headline(comparison),
        "science_fingerprint": sciences.pop() if len(sciences) == 1 else None,
        "differences": [
            {"scope": one.scope, "key": one.key, "effect": one.effect, "values": dict(one.values)} for one in comparison.differences
        ],
        "findings": [
            {"question": finding.question, "answer": finding.answer, "reasons": list(finding.reasons)}
            for finding in findings(results, comparison)
        ],
        "variants": {variant.name: _variant_json(variant) for variant in results.variants},
        "units": dict(UNITS),
        "source": MEASURED,
        "command": results.command,
    }


def _variant_json(variant: Variant) -> dict[str, Any]:
    score, training = variant.score(PRIMARY_SPLIT), variant.training
    return {
        "backend": variant.backend,
        "pass_at_1": score.value if score else None,
        "pass_at_1_interval": [score.low, score.high] if score else None,
        "n": score.problems if score else None,
        "splits": _splits_json(variant.scores),
        "final_loss": finite(training.final_loss) if training else None,
        "losses": [[step, finite(loss)] for step, loss in training.losses] if training else None,
        "tokens_per_s": finite(training.tokens_per_s) if training else None,
        "seconds": finite(training.seconds) if training else None,
        "tokens": training.tokens if training else None,
        "loss_tokens": training.loss_tokens if training else None,
        "adapter_bytes": variant.adapter_bytes,
        "fingerprints": {scope: variant.record.fingerprint(scope) for scope in ("science", "system", "evaluation", "provenance")},
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
