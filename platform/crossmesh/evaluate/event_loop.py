"""An event loop that Ctrl-C cannot leave half made."""

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def run(main: Coroutine[Any, Any, _Result]) -> _Result:
    """As `asyncio.run`; a signal that comes while the loop is made is handled once it is: of half a loop Python prints a traceback."""
    runner = asyncio.Runner()
    try:
        with _deferred():
            runner.get_loop()
        return runner.run(main)
    finally:
        main.close()
        runner.close()


@contextmanager
def _deferred() -> Iterator[None]:
    """Handle SIGINT and SIGTERM after the block; outside the main thread, where Python handles none, do nothing."""
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, note)
    except ValueError:
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for one in came:
        signal.raise_signal(one)
