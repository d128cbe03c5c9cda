"""What a person sees while a job runs: stages, progress with rate and time left, the result.

Progress and messages go to stderr, a live bar on a terminal and plain lines elsewhere; the result goes to stdout, as a table or as one
line of JSON. Knows nothing of what the stages are: events of any room are shown by their shape.
"""

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import mean
from typing import Any, Protocol, runtime_checkable

from rich.console import Console as RichConsole
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

_LINE_EVERY_S = 5.0
"""Without a terminal, progress is a line at most this often, and at the first and the last step."""

_RECENT_STEPS = 5
"""The time left follows from the mean of so many steps."""


@runtime_checkable
class StepLike(Protocol):
    """A step of something that counts up to `steps` and processes tokens."""

    @property
    def step(self) -> int:
        """Steps done."""

    @property
    def steps(self) -> int:
        """Steps to do."""

    @property
    def loss(self) -> float:
        """Loss of the step."""

    @property
    def seconds(self) -> float:
        """Wall clock of the step."""

    @property
    def first(self) -> bool:
        """Whether the step also warmed up, so that its time says nothing of the next."""

    @property
    def tokens_per_s(self) -> float:
        """Rate of the step."""


@runtime_checkable
class TextLike(Protocol):
    """A line to show."""

    @property
    def text(self) -> str:
        """The line."""


class Console:
    """Shows a job to the person who started it."""

    def __init__(self) -> None:
        """Attach to stderr and stdout."""
        self._out = RichConsole(stderr=True, highlight=False)

    def say(self, text: str) -> None:
        """Show one line."""
        self._out.print(escape(text), soft_wrap=True)

    def show(self, text: Text) -> None:
        """Show text that has its own colors."""
        self._out.print(text, soft_wrap=True)

    @contextmanager
    def stage(self, title: str) -> Iterator["Stage"]:
        """Show that a stage begins, and that and after how long it ended; what happens within is told to the yielded `Stage`."""
        start = time.monotonic()
        self._out.print(f"[bold]{escape(title)}[/]", soft_wrap=True)
        stage = Stage(self._out)
        try:
            yield stage
        except BaseException:
            stage.close()
            self._out.print(f"[red]stopped[/] after {format_seconds(time.monotonic() - start)}: {escape(title)}", soft_wrap=True)
            raise
        stage.close()
        self._out.print(f"[green]done[/] in {format_seconds(time.monotonic() - start)}: {escape(title)}", soft_wrap=True)

    def result(self, title: str, values: Mapping[str, Any], output: str) -> None:
        """Print `values` on stdout: a table of two columns, or with `output=json` one line of JSON."""
        table = Table(title=title, title_justify="left", show_header=False)
        for key, value in values.items():
            table.add_row(escape(key), escape(f"{value:.6g}" if isinstance(value, float) else str(value)))
        self.finish(lambda: RichConsole(highlight=False).print(table), values, output)

    def finish(self, show: Callable[[], None], values: Mapping[str, Any], output: str) -> None:
        """End a job: call `show`, or with `output=json` print `values` as the last line of stdout."""
        if output == "json":
            parts = (f"{json.dumps(key)}: {json.dumps(value, default=str, ensure_ascii=False)}" for key, value in values.items())
            for number, part in enumerate(parts):  # One by one: a report of ten thousand runs is long.
                sys.stdout.write(f"{', ' if number else '{'}{part}")
            sys.stdout.write("}\n" if values else "{}\n")
        else:
            show()
        sys.stdout.flush()


class Stage:
    """One stage on the screen: lines, and one progress bar for each phase that counts."""

    def __init__(self, out: RichConsole) -> None:
        """Show on `out`."""
        self._out = out
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._phase: str | None = None
        self._phase_start = (0.0, 0)
        self._last_line = -_LINE_EVERY_S
        self._recent: deque[float] = deque(maxlen=_RECENT_STEPS)

    def say(self, text: str) -> None:
        """Show one line under the stage's title."""
        self._out.print(f"  {escape(text)}", soft_wrap=True)

    def hear(self, event: object) -> None:
        """Show an event of a training run: a step as progress, a text as a line; others are not shown."""
        if isinstance(event, StepLike):
            if not event.first:
                self._recent.append(event.seconds)
            left = (event.steps - event.step) * mean(self._recent) if self._recent else None
            self._advance("steps", event.step, event.steps, f"loss {event.loss:.4f}, {event.tokens_per_s:,.0f} tokens/s", left)
        elif isinstance(event, TextLike):
            self.say(event.text)

    def progress(self, phase: str, done: int, total: int) -> None:
        """Show that `done` of `total` pieces of `phase` are done; rate and time left follow from the first call of a phase."""
        now = time.monotonic()
        if phase != self._phase:
            self._phase_start = (now, done)
        start, already = self._phase_start
        rate = (done - already) / (now - start) if now > start else 0.0
        left = (total - done) / rate if rate else None
        self._advance(phase, done, total, f"{rate:.1f}/s" if rate else "", left)

    def megabytes(self, done: int, total: int) -> None:
        """Show that `done` of `total` bytes are done."""
        whole = -(-total // 10**6)
        self.progress("MB", whole if done == total else done // 10**6, whole)

    def close(self) -> None:
        """Stop the live display."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _advance(self, phase: str, done: int, total: int, info: str, left_s: float | None) -> None:
        new_phase, self._phase = phase != self._phase, phase
        if left_s is not None and done < total:
            info = f"{info}, {format_seconds(left_s)} left"
        if not self._out.is_terminal:
            now = time.monotonic()
            if new_phase or done >= total or now - self._last_line >= _LINE_EVERY_S:
                self._last_line = now
                self.say(f"{phase} {done}/{total} {info}".rstrip())
            return
        if self._bar is None or self._task is None or new_phase:
            self.close()
            columns = (TextColumn("  {task.description}"), BarColumn(30), MofNCompleteColumn(), TextColumn("{task.fields[info]}"))
            self._bar = Progress(*columns, console=self._out)
            self._task = self._bar.add_task(escape(phase), total=total, info=info)
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total, info=escape(info))


def format_seconds(seconds: float) -> str:
    """Write a duration for a person: 3.2 s, 2 min 05 s, 1 h 02 min."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
