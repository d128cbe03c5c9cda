"""What is known of each variant, one quantity after another: its cells, its estimates, and which way is better. Pure.

A cell without a number says why. Total costs are `ownership`'s.
"""

from collections.abc import Callable, Iterator

from crossmesh.evaluate.estimates import Estimate
from crossmesh.report.tables.cells import DERIVED, FLAGGED, MEASURED, PUBLISHED, Cell, missing
from crossmesh.report.tables.measures import training_quantities
from crossmesh.report.tables.quantity import COST, EVALUATION, HIGHER, LOWER, NEITHER, NOT_EVALUATED, NOT_TRAINED, SERVED, Quantity
from crossmesh.report.units import number_text
from crossmesh.report.variants import Results, Score, ServingCell, Variant, split_name

SERVING: dict[str, tuple[str, str, str, float]] = {
    "output_tokens_per_s": ("output", "tokens/s", HIGHER, 1.0),
    "ttft_p50_s": ("first token", "ms, median", LOWER, 1000.0),
    "tpot_p50_s": ("per further token", "ms, median", LOWER, 1000.0),
    "itl_p99_s": ("between tokens", "ms, 99th percentile", LOWER, 1000.0),
    "goodput_requests_per_s": ("goodput", "requests/s within the SLO", HIGHER, 1.0),
}
"""Figures of a benchmarked load, as `bench` calls them: name, unit, which way is better, what they are multiplied by."""
USD_OUTPUT = "usd_per_million_output_tokens"
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
        cells = {v: missing(NOT_EVALUATED) if one is None else Cell(f"{one:.4g}", "", MEASURED, one) for v, one in values.items()}
        estimates = {v: Estimate(one) for v, one in values.items() if one is not None}
        yield Quantity(f"lm_eval/{name}", EVALUATION, name, "", "by lm-evaluation-harness", NEITHER, "quality", cells, estimates)


def _score_cell(score: Score | None) -> Cell:
    if score is None:
        return missing(NOT_EVALUATED)
    return Cell(f"{100 * score.value:.1f}", f"{100 * score.low:.1f} to {100 * score.high:.1f}", MEASURED, 100 * score.value)


def _serving(results: Results) -> Iterator[Quantity]:
    loads = {one.name: one for variant in results.variants for one in variant.serving}
    for load in sorted(loads.values(), key=lambda one: (one.input_tokens, one.output_tokens, one.name)):
        cells = {v.name: next((one for one in v.serving if one.name == load.name), None) for v in results.variants}
        for key, (label, unit, better, scale) in SERVING.items():
            shown = {name: _serving_cell(key, cell, scale) for name, cell in cells.items()}
            if all(cell.value is None for cell in shown.values()):
                continue
            sound = {name: Estimate(*cell.figures[key]) for name, cell in cells.items() if cell and key in cell.figures and not cell.flags}
            yield Quantity(f"{key}/{load.name}", SERVED, label, unit, "", better, "serving", shown, sound, load=load.name)
        usd = {v.name: _output_usd(v, cells[v.name]) for v in results.variants}
        yield Quantity(
            key=f"{USD_OUTPUT}/{load.name}",
            section=SERVED,
            label="USD per million output tokens",
            unit="USD",
            how="",
            better=LOWER,
            aspect="serving",
            cells={name: Cell(f"{one:.2f}", "", DERIVED, one) if isinstance(one, float) else missing(one) for name, one in usd.items()},
            estimates={name: Estimate(one) for name, one in usd.items() if isinstance(one, float) and not _flags(cells[name])},
            load=load.name,
        )


def _flags(cell: ServingCell | None) -> tuple[str, ...]:
    return cell.flags if cell else ()


def _serving_cell(key: str, cell: ServingCell | None, scale: float) -> Cell:
    if cell is None:
        return missing("not put under this load")
    figures = cell.figures
    if key not in figures:
        return missing("not measured")
    value, low, high = figures[key]
    interval = f"{number_text(scale * low)} to {number_text(scale * high)}" if low is not None and high is not None else ""
    flags = _flags(cell)
    return Cell(number_text(scale * value), "; ".join(flags) or interval, MEASURED, scale * value, FLAGGED if flags else "")


def _output_usd(variant: Variant, cell: ServingCell | None) -> float | str:
    """USD of a million output tokens at this load, or why there is none."""
    figures = cell.figures if cell else {}
    if "output_tokens_per_s" not in figures or figures["output_tokens_per_s"][0] <= 0:
        return "no output rate at this load"
    if variant.serving_rent.usd_per_hour is None:
        return variant.serving_rent.why
    return variant.serving_rent.usd_per_hour / 3600 / figures["output_tokens_per_s"][0] * 1e6


def _cost(results: Results) -> Iterator[Quantity]:
    def one(key: str, label: str, how: str, better: str, of: Callable[[Variant], float | None], source: str) -> Quantity:
        known = {v.name: value for v in results.variants if (value := of(v)) is not None}
        why = {v.name: NOT_TRAINED if v.training is None else v.rent.why or "not recorded" for v in results.variants}
        cells = {
            name: Cell(_usd_text(known[name]), "", source, known[name]) if name in known else missing(reason)
            for name, reason in why.items()
        }
        return Quantity(key, COST, label, "USD", how, better, "cost", cells, {name: Estimate(value) for name, value in known.items()})

    bases = " / ".join(sorted({v.rent.basis for v in results.variants if v.rent.basis}))
    yield one("usd_per_hour", "Price of the hardware, an hour", bases, NEITHER, lambda v: v.rent.usd_per_hour, PUBLISHED)
    yield one("usd", "Cost of the run", "price times the time of all steps", LOWER, lambda v: v.usd, DERIVED)
    yield one("usd_per_million_tokens", "Cost of a million tokens", "real tokens trained on", LOWER, _per_million, DERIVED)


def _per_million(variant: Variant) -> float | None:
    return 1e6 * variant.usd / variant.training.tokens if variant.usd is not None and variant.training and variant.training.tokens else None


def _usd_text(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 else f"{value:.3g}"
