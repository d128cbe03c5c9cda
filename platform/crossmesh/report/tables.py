"""The report in a terminal: verdict, differing keys and the result table, with rich. Shows; computes nothing."""

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from crossmesh.report.comparable import Comparison
from crossmesh.report.findings import BAD, GOOD, findings, headline
from crossmesh.report.rows import table_rows
from crossmesh.report.variants import Results

_STYLES = {GOOD: "bold green", BAD: "bold red"}


def print_report(results: Results, comparison: Comparison, console: Console) -> None:
    """Print the verdict, the answers, the differing keys and the table."""
    console.print(render(results, comparison))


def render(results: Results, comparison: Comparison) -> RenderableType:
    """Return the whole as something rich can print; all text from outside is literal, never markup."""
    parts: list[RenderableType] = [Text(headline(comparison), style=_STYLES[GOOD if comparison.comparable else BAD])]
    for finding in findings(results, comparison):
        line = Text(f"{finding.question} ")
        line.append(finding.answer, style=_STYLES.get(finding.tone, "bold"))
        parts.append(line)
    parts.append(_result_table(results))
    if comparison.differences:
        parts.append(_difference_table(comparison, [variant.name for variant in results.variants]))
    return Group(*parts)


def _result_table(results: Results) -> Table:
    table = Table(title=Text(f"{results.experiment}: results"), title_justify="left", caption_justify="left")
    table.add_column("")
    for variant in results.variants:
        table.add_column(Text(variant.name), justify="right")
    table.add_column("unit")
    table.add_column("source")
    for row in table_rows(results):
        cells = [Text(f"{cell.text}\n{cell.note}".strip(), style="dim" if cell.missing else "") for cell in row.cells]
        table.add_row(Text(row.label), *cells, Text(row.unit), Text(row.source))
    return table


def _difference_table(comparison: Comparison, order: list[str]) -> Table:
    table = Table(title="differing keys", title_justify="left")
    table.add_column("key", overflow="fold")
    names = [name for name in order if any(name in difference.values for difference in comparison.differences)]
    for name in names:
        table.add_column(Text(name), overflow="fold")
    table.add_column("what it means")
    for difference in comparison.differences:
        values = [Text(difference.values.get(name, "")) for name in names]
        table.add_row(Text(f"{difference.scope}.{difference.key}"), *values, Text(difference.effect))
    return table
