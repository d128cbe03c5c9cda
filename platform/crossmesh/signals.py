"""Signal handlers for a block of code."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
