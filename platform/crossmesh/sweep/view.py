"""A sweep on the screen: a table that changes on a terminal, lines elsewhere, and the last table with every reason."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from math import isfinite

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from crossmesh.console import format_seconds
from crossmesh.sweep.state import DONE, EARLY, FAILED, REJECTED, RUNNING, SKIPPED, STOPPED, WAITING, Point, SweepState

_STYLES = {
    DONE: "green",
    SKIPPED: "green",
    EARLY: "cyan",
    RUNNING: "bold",
    WAITING: "dim",
    STOPPED: "yellow",
    REJECTED: "magenta",
    FAILED: "red",
}
_STEP_LINE_S = 10.0
"""Without a terminal, the steps of a point are a line at most this often."""
_SHOWN = 40
"""Most points of a live table: those that run, then those that ended last."""
_LAST = 200
"""Most points, and most reasons, of the last table: more is nothing to read, and takes a terminal seconds."""


class SweepView:
    """Shows a sweep while it runs, on stderr."""

    def __init__(self, *, live: bool) -> None:
        """`live`: a table that changes, if this is a terminal."""
        self._out = Console(stderr=True, highlight=False)
        self._live = Live(console=self._out, auto_refresh=False, transient=True) if live and sys.stderr.isatty() else None
        self._told: dict[str, tuple[str, str]] = {}
        self._told_step: dict[str, float] = {}

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the table within the block."""
        if self._live is None:
            yield
        else:
            with self._live:
                yield

    def say(self, text: str) -> None:
        """Show a line."""
        self._out.print(escape(text), soft_wrap=True)

    def show(self, state: SweepState) -> None:
        """Show where the sweep stands."""
        if self._live is not None:
            self._live.update(live_table(state), refresh=True)
            return
        for point in state.points:
            self._tell(point, state)

    def _tell(self, point: Point, state: SweepState) -> None:
        now = (point.state, "" if point.step else point.stage)
        new = self._told.get(point.key, (WAITING, "")) != now
        due = point.state == RUNNING and point.step and time.monotonic() - self._told_step.get(point.key, 0.0) >= _STEP_LINE_S
        if not new and not due:
            return
        self._told[point.key], self._told_step[point.key] = now, time.monotonic()
        what = point.stage if point.state == RUNNING and not point.step else point.state
        doing = (
            f"step {point.step}/{point.steps}, {_rate(point)} tokens/s, {_left(point)} left"
            if point.step and point.state == RUNNING
            else what
        )
        spent = f"; {spent_text(state)}; {progress_text(state)}" if point.state not in (RUNNING, WAITING) else ""
        because = f": {point.reason}" if point.reason else ""
        self.say(f"  {point.label or point.key}: {doing}{because}{spent}")


def live_table(state: SweepState) -> RenderableType:
    """The table while it runs: those that run first."""
    order = {RUNNING: 0, WAITING: 2}
    points = sorted(state.points, key=lambda point: order.get(point.state, 1))
    shown = [point for point in points if point.state != WAITING][:_SHOWN]
    shown += [point for point in points if point.state == WAITING][: _SHOWN - len(shown)]
    left = [Text(f"and {len(points) - len(shown)} more", style="dim")] if len(shown) < len(points) else []
    return Group(Text(heading(state), style="italic"), Text(progress_text(state), style="bold"), _table(shown, running=True), *left)


def last_table(state: SweepState) -> RenderableType:
    """The points in the order of the command, and the reason of each that is not done; of very many those first that are not done."""
    known = [point for point in state.points if point.reason and point.state not in (RUNNING, WAITING)]
    reasons = [Text(f"{point.label or point.key}: {point.reason}", style=_STYLES[point.state]) for point in known[:_LAST]]
    over = [Text(state.over, style="yellow")] if state.over else []
    shown = state.points
    if len(shown) > _LAST:
        first = sorted(range(len(shown)), key=lambda index: shown[index].state in (DONE, SKIPPED))[:_LAST]
        shown = tuple(state.points[index] for index in sorted(first))
        over.insert(0, Text(f"and {len(state.points) - _LAST:,} more points; output=json has all", style="dim"))
    return Group(Text(heading(state), style="italic"), _table(shown, running=False), *reasons, *over)


def spent_text(state: SweepState) -> str:
    """What it cost, against the budget where there is one."""
    spent = state.spent
    hours = f"{spent.hours:.2f}" + (f" of {state.max_hours:g}" if state.max_hours else "") + " hours"
    priced = any(point.usd_per_hour is not None for point in state.points)
    usd = f", {spent.usd:.2f}" + (f" of {state.max_usd:g}" if state.max_usd else "") + " USD" if priced else ""
    return f"spent {hours}{usd}"


def progress_text(state: SweepState) -> str:
    """How many points have ended, how long the others will take, and the best so far of those that ran to their end."""
    waiting = sum(point.state in (RUNNING, WAITING) for point in state.points)
    total = len(state.points)
    left = left_s(state)
    time_left = "" if not waiting else ", time left not known yet" if left is None else f", about {format_seconds(left)} left"
    return "; ".join([f"{total - waiting}/{total} ended{time_left}", *_best_so_far(state.points)])


def left_s(state: SweepState) -> float | None:
    """Seconds until all points have ended, if as many run at once as now; None while no point has told how long one takes.

    A point that waits is taken to run as long as the mean of those that ended or will.
    """
    running = [point for point in state.points if point.state == RUNNING]
    waiting = sum(point.state == WAITING for point in state.points)
    whole = [point.seconds for point in state.points if point.state == DONE and point.seconds]
    whole += [point.seconds + point.left_s for point in running if point.left_s is not None]
    if not whole:
        return 0.0 if not running and not waiting else None
    mean = sum(whole) / len(whole)
    lefts = [max(0.0, mean - point.seconds) if point.left_s is None else point.left_s for point in running]
    together = (sum(lefts) + waiting * mean) / max(1, len(running))
    return max([together, *lefts])


def _best_so_far(points: Sequence[Point]) -> list[str]:
    """The lowest loss and the highest rate of points that ran to their end: of one run each, so nothing is decided."""
    ended = [point for point in points if point.state in (DONE, SKIPPED)]
    losses = [(point.loss, point) for point in ended if point.loss is not None and isfinite(point.loss)]
    rates = [(point.tokens_per_s, point) for point in ended if point.tokens_per_s and not point.emulated]
    said = []
    if losses:
        loss, point = min(losses, key=lambda one: one[0])
        said.append(f"lowest loss so far {loss:.4f} ({point.label or point.key})")
    if rates:
        rate, point = max(rates, key=lambda one: one[0])
        said.append(f"highest tokens/s so far {rate:,.0f} ({point.label or point.key})")
    return said


def heading(state: SweepState) -> str:
    """What it is, how far it is, and what it cost."""
    counts = ", ".join(f"{count} {name}" for name, count in state.counts().items())
    return f"{state.name}: {state.verb}, {len(state.points)} points: {counts}; {spent_text(state)}"


def written_at(state: SweepState) -> str:
    """When its state was written, for a person."""
    return datetime.fromtimestamp(state.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _table(points: Sequence[Point], *, running: bool) -> Table:
    table = Table()
    table.add_column("point", overflow="fold")
    table.add_column("state")
    columns = ("step", "loss", "tokens/s", *(("left",) if running else ()), "ran", "USD")
    for name in columns:
        table.add_column(name, justify="right")
    table.add_column("stage" if running else "run", overflow="fold")
    for point in points:
        figures = (
            f"{point.step}/{point.steps}" if point.steps else "",
            f"{point.loss:.4f}" if point.loss is not None else "",
            _rate(point),
        )
        left = (_left(point) if point.state == RUNNING else "",) if running else ()
        cost = (format_seconds(point.seconds) if point.seconds else "", "" if point.usd is None else f"{point.usd:.2f}")
        last = (point.stage if point.state == RUNNING else "") if running else point.run_id[:8]
        cells = [Text(cell) for cell in (point.label or point.key, point.state, *figures, *left, *cost, last)]
        table.add_row(*cells, style=_STYLES[point.state])
    return table


def _rate(point: Point) -> str:
    return "" if point.tokens_per_s is None else f"{point.tokens_per_s:,.0f}{' emulated' if point.emulated else ''}"


def _left(point: Point) -> str:
    return "?" if point.left_s is None else format_seconds(point.left_s)
