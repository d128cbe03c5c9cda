"""What is known of each variant, one quantity after another: its cells, its estimates, and which way is better. Pure.

A cell without a number says why. Total costs are `ownership`'s.
"""

from collections.abc import Callable, Iterator

from crossmesh.evaluate.estimates import Estimate
from crossmesh.metrics import (
    DERIVED,
    GOODPUT,
    HIGHER,
    ITL_P99,
    LOWER,
    MEASURED,
    NEITHER,
    OUTPUT_TOKENS_PER_S,
    TPOT_P50,
    TTFT_P50,
    USD,
    USD_PER_HOUR,
    USD_PER_MILLION_OUTPUT_TOKENS,
    USD_PER_MILLION_TOKENS,
    Metric,
)
from crossmesh.report.tables.cells import FLAGGED, TableCell, missing
from crossmesh.report.tables.measures import training_quantities
from crossmesh.report.tables.quantity import COST, EVALUATION, NOT_EVALUATED, NOT_TRAINED, SERVED, Quantity
from crossmesh.report.units import number_text
from crossmesh.report.variants import Results, Score, ServingCell, Variant, split_name

SERVING = (OUTPUT_TOKENS_PER_S, TTFT_P50, TPOT_P50, ITL_P99, GOODPUT)
"""Figures of a benchmarked load that are shown, as `bench` names them."""
USD_OUTPUT = USD_PER_MILLION_OUTPUT_TOKENS.name
_METHODS = {"wilson": "Wilson"}


def quantities(results: Results) -> tuple[Quantity, ...]:
    """Return all that any variant has a number for, and the main ones also when none has."""
    return (*training_quantities(results), *_evaluation(results), *_serving(results), *_cost(results))


def _evaluation(results: Results) -> Iterator[Quantity]:
    for _, split, k in sorted({(results.splits.index(s.split), s.split, s.k) for v in results.variants for s in v.scores}):
        scores = {variant.name: variant.score(split, k) for variant in results.variants}
        known = {name: score for name, score in scores.items() if score is not None}
        problems = "/".join(map(str, sorted({score.problems for score in known.values()})))
        levels = " / ".join(sorted({f"{one.level:.0%} interval ({_METHODS.get(one.method, one.method)})" for one in known.values()}))
        yield Quantity(
            key=f"pass_at_{k}/{split}",
            section=EVALUATION,
            label=f"pass@{k}, {split_name(split)}",
            unit="%",
            how=f"{problems} problems simulated, {levels}",
            better=HIGHER,
            aspect="quality",
            cells={name: _score_cell(score) for name, score in scores.items()},
            estimates={name: Estimate(one.value, one.low, one.high) for name, one in known.items()},
            split=split,
            share=True,
        )

    for name in sorted({name for variant in results.variants for name in variant.metrics}):
        values = {variant.name: variant.metrics.get(name) for variant in results.variants}
        cells = {v: missing(NOT_EVALUATED) if one is None else TableCell(f"{one:.4g}", "", MEASURED, one) for v, one in values.items()}
        estimates = {v: Estimate(one) for v, one in values.items() if one is not None}
        yield Quantity(f"lm_eval/{name}", EVALUATION, name, "", "by lm-evaluation-harness", NEITHER, "quality", cells, estimates)


def _score_cell(score: Score | None) -> TableCell:
    if score is None:
        return missing(NOT_EVALUATED)
    return TableCell(f"{100 * score.value:.1f}", f"{100 * score.low:.1f} to {100 * score.high:.1f}", MEASURED, 100 * score.value)


def _serving(results: Results) -> Iterator[Quantity]:
    loads = {one.name: one for variant in results.variants for one in variant.serving}
    for load in sorted(loads.values(), key=lambda one: (one.input_tokens, one.output_tokens, one.name)):
        cells = {v.name: next((one for one in v.serving if one.name == load.name), None) for v in results.variants}
        for metric in SERVING:
            key, scale = metric.name, metric.scale
            shown = {name: _serving_cell(key, cell, scale) for name, cell in cells.items()}
            if all(cell.value is None for cell in shown.values()):
                continue
            sound = {name: Estimate(*cell.figures[key]) for name, cell in cells.items() if cell and key in cell.figures and not cell.flags}
            shape = (metric.label, metric.unit, metric.how, metric.better, metric.aspect)
            yield Quantity(f"{key}/{load.name}", SERVED, *shape, shown, sound, load=load.name)
        usd = {v.name: _output_usd(v, cells[v.name]) for v in results.variants}
        yield Quantity(
            key=f"{USD_OUTPUT}/{load.name}",
            section=SERVED,
            label=USD_PER_MILLION_OUTPUT_TOKENS.label,
            unit=USD_PER_MILLION_OUTPUT_TOKENS.unit,
            how="",
            better=LOWER,
            aspect="serving",
            cells={
                name: TableCell(f"{one:.2f}", "", DERIVED, one) if isinstance(one, float) else missing(one) for name, one in usd.items()
            },
            estimates={name: Estimate(one) for name, one in usd.items() if isinstance(one, float) and not _flags(cells[name])},
            load=load.name,
        )


def _flags(cell: ServingCell | None) -> tuple[str, ...]:
    return cell.flags if cell else ()


def _serving_cell(key: str, cell: ServingCell | None, scale: float) -> TableCell:
    if cell is None:
        return missing("not put under this load")
    figures = cell.figures
    if key not in figures:
        return missing("not measured")
    value, low, high = figures[key]
    interval = f"{number_text(scale * low)} to {number_text(scale * high)}" if low is not None and high is not None else ""
    flags = _flags(cell)
    return TableCell(number_text(scale * value), "; ".join(flags) or interval, MEASURED, scale * value, FLAGGED if flags else "")


def _output_usd(variant: Variant, cell: ServingCell | None) -> float | str:
    """USD of a million output tokens at this load, or why there is none."""
    figures = cell.figures if cell else {}
    if OUTPUT_TOKENS_PER_S.name not in figures or figures[OUTPUT_TOKENS_PER_S.name][0] <= 0:
        return "no output rate at this load"
    if variant.serving_rent.usd_per_hour is None:
        return variant.serving_rent.why
    return variant.serving_rent.usd_per_hour / 3600 / figures[OUTPUT_TOKENS_PER_S.name][0] * 1e6


def _cost(results: Results) -> Iterator[Quantity]:
    def one(metric: Metric, of: Callable[[Variant], float | None], how: str = "") -> Quantity:
        known = {v.name: value for v in results.variants if (value := of(v)) is not None}
        why = {v.name: NOT_TRAINED if v.training is None else v.rent.why or "not recorded" for v in results.variants}
        cells = {
            name: TableCell(_usd_text(known[name]), "", metric.source, known[name]) if name in known else missing(reason)
            for name, reason in why.items()
        }
        estimates = {name: Estimate(value) for name, value in known.items()}
        return Quantity(metric.name, COST, metric.label, metric.unit, how or metric.how, metric.better, metric.aspect, cells, estimates)

    bases = " / ".join(sorted({v.rent.basis for v in results.variants if v.rent.basis}))
    yield one(USD_PER_HOUR, lambda v: v.rent.usd_per_hour, bases)
    yield one(USD, lambda v: v.usd)
    yield one(USD_PER_MILLION_TOKENS, _per_million)


def _per_million(variant: Variant) -> float | None:
    return 1e6 * variant.usd / variant.training.tokens if variant.usd is not None and variant.training and variant.training.tokens else None


def _usd_text(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 else f"{value:.3g}"
