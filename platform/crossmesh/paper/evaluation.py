"""The evaluation table of arXiv 2605.25645 for a person and a script: what its counts allow."""

from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from crossmesh.paper.published import PAPER, Published, compare_published


def evaluation_json() -> dict[str, Any]:
    """What the paper's published counts allow, as JSON values."""
    one, other = PAPER[1], PAPER[0]
    return {"report": "paper", "results": [_published_json(each) for each in PAPER], "difference": asdict(compare_published(one, other))}


def evaluation_table() -> RenderableType:
    """The same for a person."""
    table = Table(title="arXiv 2605.25645, verilog-eval: what its counts allow", title_justify="left")
    for column in ("adapter of", "pass@1", "right", "solved", "95% interval, least", "most"):
        table.add_column(column)
    for each in PAPER:
        answers, solved = f"{each.right} of {each.problems * each.answers}", f"{each.solved} of {each.problems}"
        table.add_row(each.name, f"{each.pass_at_1:.4f}", answers, solved, *(_interval(*each.interval(error)) for error in each.errors))
    allowed = compare_published(PAPER[1], PAPER[0])
    narrow, wide = allowed.independent
    low, high = allowed.paired_errors
    lines = (
        f"Difference {100 * allowed.difference:+.1f} points. Were the two unrelated, its interval is {_interval(*narrow)} at the least and",
        f"{_interval(*wide)} at the most; zero is in both. Both answered the same problems, so its standard error is anything from",
        f"{100 * low:.1f} to {100 * high:.1f} points; which, only the answers say, problem by problem. Problems solved: p is "
        f"{allowed.solved_p:.2f} or more,",
        "however they pair. The two were also sampled by different engines.",
    )
    return Group(table, Text(" ".join(lines)))


def _published_json(each: Published) -> dict[str, Any]:
    intervals = [list(each.interval(error)) for error in each.errors]
    return {**asdict(each), "right": each.right, "solved": each.solved, "standard_errors": list(each.errors), "intervals": intervals}


def _interval(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {100 * high:.1f}"
