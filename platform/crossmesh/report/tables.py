"""The report in a terminal: verdict, answers, differing keys and the tables, with rich. Shows; computes nothing."""

from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from crossmesh.report.cells import BEST, FLAGGED, MISSING, Cell, Table
from crossmesh.report.comparable import Comparison
from crossmesh.report.findings import BAD, GOOD, findings, headline, lead
from crossmesh.report.sheets import difference_rows, gaps, tables
from crossmesh.report.write import Report

_STYLES = {GOOD: "bold green", BAD: "bold red"}
_CELL_STYLES = {BEST: "bold green", FLAGGED: "red", MISSING: "dim"}
_ROWS = 20
"""Most rows of a table that a terminal shows; the files have all."""


def print_report(report: Report, console: Console) -> None:
    """Print the verdict, the answers, the differing keys and the tables; all text from outside is literal, never markup."""
    results, comparison, found = report.results, report.comparison, report.found
    parts: list[RenderableType] = [Text(headline(comparison), style=_STYLES[BAD if comparison.blocking else GOOD])]
    parts += [Text(line) for line in lead(results, comparison)]
    for finding in findings(results, comparison, found):
        line = Text(f"{finding.question} ")
        line.append(finding.answer, style=_STYLES.get(finding.tone, "bold"))
        parts.append(line)
    for group in comparison.groups if len(comparison.groups) > 1 else ():
        parts.append(Text(f"group {group.letter}: {len(group.names)} runs, {group.words}"))
    parts += [_table(table, results.experiment) for table in tables(results, comparison, found)]
    if comparison.differences:
        parts.append(_difference_table(comparison, len(results.variants)))
    parts += [Text(line, style="yellow") for line in (*found.break_evens, *gaps(results, found), *results.notes)]
    console.print(Group(*parts))


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


def _cell(cell: Cell) -> Text:
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
