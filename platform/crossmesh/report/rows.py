"""The result table as values, the same for terminal and HTML: one row a quantity, one cell a variant, with unit and source."""

from collections.abc import Callable
from dataclasses import dataclass

from crossmesh.report.variants import Results, Score, TrainingSummary, Variant, split_name

MEASURED = "measured"
NOT_TRAINED = "not trained"
NOT_MEASURED = "not measured"
_METHODS = {"wilson": "Wilson"}


@dataclass(frozen=True)
class Cell:
    """A number as it is shown, or why there is none."""

    text: str
    note: str = ""
    """Its interval."""
    missing: bool = False
    """`text` is the reason why there is no number."""


@dataclass(frozen=True)
class Row:
    """A quantity: its name, its unit and where its numbers come from."""

    label: str
    unit: str
    source: str
    how: str
    """How it was measured."""
    cells: tuple[Cell, ...]
    """One per variant, in the order of `Results.variants`."""


def table_rows(results: Results) -> tuple[Row, ...]:
    """Return the rows of the result table."""
    pairs = sorted({(results.splits.index(s.split), s.split, s.k) for v in results.variants for s in v.scores})
    rows = [_score_row(results, split, k) for _, split, k in pairs]
    rows += [
        _training_row(
            results, "Loss, last step", "nats/token", "mean over the loss tokens of the step's batch", lambda t: f"{t.final_loss:.4f}"
        ),
        _training_row(results, "Training speed", "real tokens/s", "padding not counted, all steps", lambda t: f"{t.tokens_per_s:,.0f}"),
        _training_row(results, "Training time", "s", "wall clock of all steps", lambda t: f"{t.seconds:,.0f}"),
        _training_row(results, "Tokens trained on", "real tokens", "padding not counted", lambda t: f"{t.tokens:,}"),
        _training_row(results, "Tokens in the loss", "tokens", "answer tokens under the loss mask", lambda t: f"{t.loss_tokens:,}"),
        Row("Adapter size", "MiB", MEASURED, "files of the exported folder", tuple(_adapter_cell(variant) for variant in results.variants)),
    ]
    return tuple(rows)


def _score_row(results: Results, split: str, k: int) -> Row:
    scores = [variant.score(split, k) for variant in results.variants]
    problems = sorted({score.problems for score in scores if score is not None})
    levels = sorted({f"{score.level:.0%} interval ({_METHODS.get(score.method, score.method)})" for score in scores if score is not None})
    label = f"pass@{k}, {split_name(split)}"
    how = f"{'/'.join(map(str, problems))} problems simulated, {' / '.join(levels)}"
    return Row(label, "%", MEASURED, how, tuple(_score_cell(score) for score in scores))


def _score_cell(score: Score | None) -> Cell:
    if score is None:
        return Cell(NOT_MEASURED, missing=True)
    return Cell(f"{100 * score.value:.1f}", f"{100 * score.low:.1f} to {100 * score.high:.1f}")


def _training_row(results: Results, label: str, unit: str, how: str, text: Callable[[TrainingSummary], str]) -> Row:
    cells = tuple(
        Cell(NOT_TRAINED, missing=True) if variant.training is None else Cell(text(variant.training)) for variant in results.variants
    )
    return Row(label, unit, MEASURED, how, cells)


def _adapter_cell(variant: Variant) -> Cell:
    if variant.adapter_bytes is None:
        return Cell(NOT_TRAINED, missing=True)
    return Cell(f"{variant.adapter_bytes / 2**20:,.1f}")
