"""The report in a terminal: verdict, answers, differing keys and the tables, with rich. Shows; computes nothing."""

from dataclasses import replace

from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from crossmesh.report.findings import BAD, GOOD, findings, headline, lead, main_result
from crossmesh.report.gate.comparable import Comparison
from crossmesh.report.pages.write import Report
from crossmesh.report.tables.cells import BEST, FLAGGED, MISSING, Table, TableCell
from crossmesh.report.tables.sheets import difference_rows, gaps, tables

_STYLES = {GOOD: "bold green", BAD: "bold red"}
_CELL_STYLES = {BEST: "bold green", FLAGGED: "red", MISSING: "dim"}
_EDGES = 3
"""Of a column: a blank on both sides and a line."""
_ROWS = 20
"""Most rows of a table that a terminal shows; the files have all."""


def print_report(report: Report, console: Console) -> None:
    """Print the verdict, the answers, the differing keys and the tables; all text from outside is literal, never markup."""
    results, comparison, found = report.results, report.comparison, report.found
    came_for = main_result(results, comparison, found)
    parts: list[RenderableType] = [Text(came_for, style="bold")] if came_for else []
    parts += [Text(headline(comparison), style=_STYLES[BAD if comparison.blocking else GOOD])]
    parts += [Text(line) for line in lead(results, comparison)]
    for finding in findings(results, comparison, found):
        line = Text(f"{finding.question} ")
        line.append(finding.answer, style=_STYLES.get(finding.tone, "bold"))
        parts.append(line)
    for group in comparison.groups[:_ROWS] if len(comparison.groups) > 1 else ():
        parts.append(Text(f"group {group.letter}: {len(group.names)} runs, {group.words}"))
    if len(comparison.groups) > _ROWS:
        parts.append(Text(f"and {len(comparison.groups) - _ROWS} more groups, in the report's files"))
    for table in tables(results, comparison, found):
        parts += _fitting(table, results.experiment, console.width)
    if comparison.differences:
        parts.append(_difference_table(comparison, len(results.variants)))
    parts += [Text(line, style="yellow") for line in (*found.break_evens, *gaps(found), *results.notes)]
    console.print(Group(*parts))


def _fitting(table: Table, experiment: str, width: int) -> list[RichTable]:
    """The table, or where words would be cut in `width` columns of text, one after another the columns that fit beside the first."""
    needed = [_longest_word(table, place) + _EDGES for place in range(len(table.columns))]
    groups: list[list[int]] = []
    used = width
    for place in range(1, len(table.columns)):
        if used + needed[place] > width:
            groups.append([0])
            used = needed[0] + 1
        groups[-1].append(place)
        used += needed[place]
    if len(groups) < 2:
        return [_table(table, experiment)]
    made = []
    for group in groups:
        rows = tuple(tuple(row[place] for place in group) for row in table.rows)
        part = _table(replace(table, columns=tuple(table.columns[place] for place in group), rows=rows), experiment)
        spare = max(0, width - 1 - sum(needed[place] for place in group))
        for column, place in zip(part.columns, group, strict=True):  # Rich would take from the widest, and cut its words.
            column.width = needed[place] - _EDGES + (0 if place else spare)
        made.append(part)
    return made


def _longest_word(table: Table, place: int) -> int:
    column, cells = table.columns[place], [_cell(row[place]).plain for row in table.rows[:_ROWS]]
    return max(len(word) for text in (column.label, column.unit or "", *cells) for word in (text.split() or [""]))


def _table(table: Table, experiment: str) -> RichTable:
    made = RichTable(title=Text(f"{experiment}: {table.title.lower()}"), title_justify="left")
    for column in table.columns:
        heading = f"{column.label}\n{column.unit}" if column.unit else column.label
        made.add_column(Text(heading), justify="right" if column.number else "left", overflow="fold")
    for row in table.rows[:_ROWS]:
        made.add_row(*(_cell(cell) for cell in row))
    if len(table.rows) > _ROWS:
        made.caption = f"{len(table.rows) - _ROWS} more rows are in the report's files"
    return made


def _cell(cell: TableCell) -> Text:
    lines = (line for line in (cell.text, cell.note, cell.source) if line)
    return Text("\n".join(lines), style=_CELL_STYLES.get(cell.state, ""))


def _difference_table(comparison: Comparison, names: int) -> RichTable:
    table = RichTable(title="differing keys", title_justify="left")
    for heading in ("key", "values, and who has them", "what it means"):
        table.add_column(heading, overflow="fold")
    for scope, key, values, effect in difference_rows(comparison, names):
        said = "\n".join(f"{value} ({who})" for value, who in values[:_ROWS])
        table.add_row(Text(f"{scope}.{key}"), Text(said), Text(effect))
    return table
