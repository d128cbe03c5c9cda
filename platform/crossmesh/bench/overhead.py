"""What serving costs beside the engine: the same prompts on several servers, split into engine, Ray Serve's ingress and ours. Pure.

Engine: vLLM's own server, of two layouts of its processes the one with more tokens a second. Ingress: what `ray.serve.llm`'s application
adds to it. Ours: what our application adds to that one, which is less than nothing where its ingress is the shorter way. Repeats are
measured in turns, so each ratio is one of a pair of neighbours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from crossmesh.bench.metrics import Estimate, estimate
from crossmesh.bench.runner import CellResult
from crossmesh.metrics import OUTPUT_TOKENS_PER_S, TTFT_P50

OURS, PLAIN, BARE, BARE_IN_PROCESS = "crossmesh", "serve_llm", "bare", "bare_in_process"
SERVERS = (BARE, PLAIN, OURS)
"""On a CPU `BARE_IN_PROCESS` stands beside `BARE`."""
_RATE, _TTFT = OUTPUT_TOKENS_PER_S.name, TTFT_P50.name


@dataclass(frozen=True)
class Overhead:
    """One concurrency. Ratios are of output tokens/s; times of the median to the first token."""

    cell: str
    concurrency: int
    tokens_per_s: Mapping[str, Estimate]
    """By server."""
    bare: str
    """The layout of vLLM's own server that is meant: the faster one."""
    ttft_s: Mapping[str, Estimate]
    ours_over_bare: Estimate
    ours_over_plain: Estimate
    plain_over_bare: Estimate
    engine_s: Estimate
    """Time to the first token of the engine behind its own server."""
    ingress_s: Estimate
    """What Ray Serve LLM's ingress adds."""
    ours_s: Estimate
    """What ours adds to that, gate included; negative: it is the faster of the two."""


def overhead_of(results: Mapping[str, CellResult]) -> Overhead | None:
    """The costs that one cell on every server shows; None when one of them is flagged or has no answers."""
    if not all(one.comparable and _TTFT in one.estimates for one in results.values()):
        return None
    rates = {name: _values(one, _RATE) for name, one in results.items()}
    times = {name: _values(one, _TTFT) for name, one in results.items()}
    best = max((name for name in (BARE, BARE_IN_PROCESS) if name in rates), key=lambda name: fmean(rates[name]))
    cell = results[OURS].cell
    return Overhead(
        cell=cell.name,
        concurrency=int(cell.value),
        tokens_per_s={name: estimate(rates[name]) for name in results},
        bare=best,
        ttft_s={name: estimate(times[name]) for name in results},
        ours_over_bare=_ratio(rates[OURS], rates[best]),
        ours_over_plain=_ratio(rates[OURS], rates[PLAIN]),
        plain_over_bare=_ratio(rates[PLAIN], rates[best]),
        engine_s=estimate(times[best]),
        ingress_s=_difference(times[PLAIN], times[best]),
        ours_s=_difference(times[OURS], times[PLAIN]),
    )


def _values(result: CellResult, name: str) -> list[float]:
    return [figures[name] for figures in result.figures]


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    return estimate([one / other for one, other in zip(ours, theirs, strict=True)])


def _difference(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    return estimate([one - other for one, other in zip(ours, theirs, strict=True)])


def overhead_json(found: Sequence[Overhead]) -> list[dict[str, Any]]:
    """As JSON values."""
    return [asdict(one) for one in found]


def overhead_table(found: Sequence[Overhead], left_out: Sequence[CellResult], notes: Sequence[str]) -> Group:
    """The costs for a person; flagged cells are said to be left out, with the reason."""
    table = Table(
        title=Text("what serving costs: same prompts, same engine arguments"), title_justify="left", box=SIMPLE_HEAD, pad_edge=False
    )
    for heading in (
        "in flight",
        "bare tok/s",
        "ours tok/s",
        "ours / bare",
        "ours / serve.llm",
        "serve.llm / bare",
        "TTFT engine",
        "+ ingress",
        "+ ours",
    ):
        table.add_column(heading, justify="right")
    for one in found:
        ratios = (one.ours_over_bare, one.ours_over_plain, one.plain_over_bare)
        times = (one.engine_s, one.ingress_s, one.ours_s)
        table.add_row(
            str(one.concurrency),
            _shown(one.tokens_per_s[one.bare], ".4g"),
            _shown(one.tokens_per_s[OURS], ".4g"),
            *(_shown(ratio, ".3f") for ratio in ratios),
            *(_shown(time, ".1f", 1e3, " ms") for time in times),
        )
    named = ", ".join(f"{one.bare} at {one.concurrency}" for one in found)
    notes = [*notes, *([f"Bare is the faster of vLLM's layouts: {named} in flight."] if named else [])]
    flags = [Text(f"left out: {one.cell.name}: {flag.kind}: {flag.text}", style="red") for one in left_out for flag in one.flags]
    return Group(table, *flags, *(Text(note, style="yellow") for note in notes))


def _shown(value: Estimate, form: str, scale: float = 1.0, unit: str = "") -> str:
    mean = f"{scale * value.mean:{form}}{unit}"
    return mean if value.low is None or value.high is None else f"{mean} ±{scale * (value.high - value.low) / 2:.2g}"
