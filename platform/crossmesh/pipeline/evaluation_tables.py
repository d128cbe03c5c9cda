"""An evaluation for a person: pass@k with intervals, what went wrong and two models problem by problem."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from crossmesh.evaluate.paired import Paired
from crossmesh.pipeline.evaluation import Evaluation
from crossmesh.pipeline.evaluation_job import Compared


def render_references(values: Mapping[str, Any]) -> RenderableType:
    """The verdict on a task's own solutions, as `judge_task` returns it."""
    table = Table(title=f"{values['task']}: its own solutions on {values['simulator']}", title_justify="left", show_header=False)
    table.add_row("right solution passes, hollow one does not", str(values["passed"]))
    table.add_row("hollow solution passes", str(values["failed"]))
    table.add_row("right solution does not pass: left out", str(len(values["excluded"])))
    for name, reason in values["reasons"].items():
        table.add_row(Text(f"  {name}"), reason)
    return table


def render_evaluations(found: Sequence[Evaluation], compared: Sequence[Compared]) -> RenderableType:
    """All results and comparisons of a job."""
    parts: list[RenderableType] = [_results(found)]
    parts += [
        Text(f"{name}: left out, {reason}", style="yellow") for name, reason in dict.fromkeys(p for f in found for p in f.result.excluded)
    ]
    parts += [Text(f"{one.name}: {warning}", style="yellow") for one in found for warning in one.result.warnings]
    parts += [
        Text(f"{one.name}: {count} prompts got no answer ({kind}); they count as wrong", style="yellow")
        for one in found
        for kind, count in one.result.errors.items()
    ]
    parts += [
        Text(f"{one.name}: {one.result.cut_at_max_tokens} answers were cut at the largest number of tokens", style="yellow")
        for one in found
        if one.result.cut_at_max_tokens
    ]
    if compared:
        parts += [_comparisons(compared), *(Text(line) for pair in compared for line in _words(pair))]
    return Group(*parts)


def _results(found: Sequence[Evaluation]) -> Table:
    table = Table(title="evaluation", title_justify="left")
    for column in ("model", "split", "score", "95% interval", "problems", "answers", "wrong because", "MLflow run"):
        table.add_column(column, justify="right" if column in ("score", "problems", "answers") else "left")
    for one in found:
        for split in one.result.splits:
            wrong = ", ".join(f"{reason} {number}" for reason, number in split.reasons.items() if reason not in ("passed", "right"))
            for index, estimate in enumerate(split.pass_at_k):
                interval = f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f}"
                cells = (f"pass@{estimate.k} {100 * estimate.value:.1f}%", interval, str(split.problems), str(split.samples))
                ends = (wrong, one.run_id[:8]) if index == 0 else ("", "")
                table.add_row(Text(one.name), Text(split.split), *cells, *map(Text, ends))
        for name, value in one.result.metrics.items():
            table.add_row(Text(one.name), Text(name), f"{value:.4f}", "", "", "", "", "")
    return table


def _comparisons(compared: Sequence[Compared]) -> Table:
    tests = compared[0].tests
    title = "problem by problem" + (f", p-values corrected for {tests} comparisons (Holm)" if tests > 1 else "")
    table = Table(title=title, title_justify="left")
    for column in ("models", "split", "points", "95% interval", "p", "better/worse", "effect", "power", "verdict"):
        table.add_column(column, justify="right" if column in ("points", "p", "effect", "power") else "left")
    for pair in compared:
        paired = pair.paired
        table.add_row(
            Text(f"{pair.one} - {pair.other}"),
            Text(f"{pair.split}, pass@{paired.k}"),
            f"{100 * paired.difference:+.1f}",
            f"{100 * paired.low:+.1f} to {100 * paired.high:+.1f}",
            f"{pair.p_corrected:.2g}",
            f"{paired.better}/{paired.worse} of {paired.problems}",
            "" if paired.effect is None else f"{paired.effect:.2f}",
            f"{paired.power:.0%}",
            Text(pair.verdict, style="red" if pair.differing else "green" if pair.shown else ""),
        )
    return table


def _words(pair: Compared) -> list[str]:
    head = f"{pair.one} - {pair.other}, {pair.split}, pass@{pair.paired.k}"
    if pair.differing:
        return [f"{head}: not comparable, they were not examined alike: {', '.join(pair.differing)} differ."]
    return [f"{head}: {needed_words(pair.paired)}"]


def needed_words(paired: Paired) -> str:
    """What the comparison could show, and what a difference of this size would take."""
    can = f"{paired.test}; {paired.problems} problems show {100 * paired.detectable:.1f} points with 80% power"
    if paired.problems_needed is None:
        return f"{can}."
    more = f"; this difference takes {paired.problems_needed} problems"
    if paired.samples_needed is not None:
        return f"{can}{more}, or {paired.samples_needed} answers to each of these."
    return f"{can}{more}."
