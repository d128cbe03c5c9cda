"""The report as Markdown, for a pull request or a wiki: verdict, answers, differing keys and tables; charts are in the HTML."""

from collections.abc import Iterable, Sequence
from html import escape

from crossmesh.report.findings import findings, headline, lead, main_result
from crossmesh.report.gate.comparable import Comparison
from crossmesh.report.tables.cells import BEST, FLAGGED, Table, TableCell
from crossmesh.report.tables.examples import Example, examples
from crossmesh.report.tables.sheets import MOST_ROWS, Computed, difference_rows, gaps, tables
from crossmesh.report.variants import Results, Said

_MOST_VALUES = 20
"""Of a key that differs."""


def render_markdown(results: Results, comparison: Comparison, found: Computed) -> str:
    """Return the text; everything from outside is escaped."""
    came_for = main_result(results, comparison, found)
    parts = [
        f"# {_text(results.experiment)}",
        *([f"**{_text(came_for)}**"] if came_for else []),
        f"**{_text(headline(comparison))}**",
        *map(_text, lead(results, comparison)),
    ]
    for one in findings(results, comparison, found):
        reasons = "".join(f"\n  - {_text(reason)}" for reason in one.reasons)
        parts.append(f"- {_text(one.question)} **{_text(one.answer)}** ({one.aspect}: {one.verdict}){reasons}")
    if len(comparison.groups) > 1:
        rows = [(one.letter, str(len(one.names)), one.words) for one in comparison.groups[:MOST_ROWS]]
        parts += ["## Comparable groups", _grid(("Group", "Runs", "What sets it apart"), rows)]
    if comparison.differences:
        rows = [
            (f"{scope}.{key}", "; ".join(_some(values)), effect)
            for scope, key, values, effect in difference_rows(comparison, len(results.variants))
        ]
        parts += ["## What differs", _grid(("Key", "Values, and who has them", "What it means"), rows)]
    for table in tables(results, comparison, found):
        parts += [f"## {_text(table.title)}", _text(table.caption), _table(table)]
    if shown := examples(results):
        parts += [
            "## Sample answers",
            "The first two that passed and the first two that failed, in the order of a digest of their names; not chosen by hand.",
        ]
        parts += map(_example, shown)
    remarks = (*found.break_evens, *gaps(found), *results.notes)
    parts += ["\n".join(f"- {_text(line)}" for line in remarks)] if remarks else []
    parts.append(f"Again: `{results.command.replace('`', ' ')}`")
    return "\n\n".join(parts) + "\n"


def _some(values: Sequence[tuple[str, str]]) -> list[str]:
    """Values with who has them, not too many."""
    more = [f"and {len(values) - _MOST_VALUES} more values"] if len(values) > _MOST_VALUES else []
    return [*(f"{value} ({who})" for value, who in values[:_MOST_VALUES]), *more]


def _example(one: Example) -> str:
    base = [_answer("base", one.base)] if one.base else []
    return "\n\n".join([f"### {_text(one.problem)}", _answer(one.variant, one.said), *base])


def _answer(name: str, said: Said) -> str:
    """An answer as it stands, in HTML: a fence would end where the answer says so."""
    verdict = "passed" if said.passed else f"failed ({_text(said.reason)})"
    return f"{_text(name)}: {verdict}\n\n<pre>{escape(said.text)}</pre>"


def _table(table: Table) -> str:
    heads = [f"{column.label} ({column.unit})" if column.unit else column.label for column in table.columns]
    return _grid(heads, [[_cell(cell) for cell in row] for row in table.rows], [column.number for column in table.columns])


def _cell(cell: TableCell) -> str:
    mark = {BEST: " *", FLAGGED: " (flagged)"}.get(cell.state, "")
    notes = ", ".join(part for part in (cell.note, cell.detail, cell.source) if part)
    return f"{cell.text}{mark}{f' ({notes})' if notes else ''}"


def _grid(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[bool] = ()) -> str:
    marks = ("---:" if number else "---" for number in numbers or [False] * len(heads))
    return "\n".join([_line(map(_text, heads)), _line(marks), *(_line(map(_text, row)) for row in rows)])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(value: str) -> str:
    """Literal text: no HTML, no markup, no end of a cell."""
    text = escape(value, quote=False).replace("\n", " ")
    return "".join(f"\\{letter}" if letter in "|*_`[]\\#" else letter for letter in text)
