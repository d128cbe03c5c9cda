"""An event loop that Ctrl-C cannot leave half made."""

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from crossmesh.signals import signal_handlers

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
    """Handle SIGINT and SIGTERM after the block."""
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    with signal_handlers({signal.SIGINT: note, signal.SIGTERM: note}):
        yield
    for number in came:
        signal.raise_signal(number)
