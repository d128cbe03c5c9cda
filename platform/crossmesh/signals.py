"""Signal handlers for a block of code, and an event loop that Ctrl-C cannot leave half made."""

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

_Result = TypeVar("_Result")


@contextmanager
def signal_handlers(handlers: dict[signal.Signals, Any]) -> Iterator[None]:
    """Install signal handlers for the block; outside the main thread, where Python allows none, do nothing."""
    before = {}
    try:
        for number, handler in handlers.items():
            before[number] = signal.signal(number, handler)
    except ValueError:
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def terminate_like_interrupt() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for SIGTERM within the block, as Ctrl-C does, so that both end a job the same way."""
    with signal_handlers({signal.SIGTERM: _interrupt}):
        yield


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def run_async(main: Coroutine[Any, Any, _Result]) -> _Result:
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
    """Handle SIGINT and SIGTERM after the block."""
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    with signal_handlers({signal.SIGINT: note, signal.SIGTERM: note}):
        yield
    for number in came:
        signal.raise_signal(number)
