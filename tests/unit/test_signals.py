"""Ctrl-C while an event loop is made ends as anywhere else, and leaves no half of it."""

import asyncio
import signal
from collections.abc import Callable

import pytest

from crossmesh.signals import run_async


async def answer() -> int:
    return 7


def test_it_runs_what_it_is_given() -> None:
    assert run_async(answer()) == 7


def test_an_interrupt_while_the_loop_is_made_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[asyncio.AbstractEventLoop] = []
    new: Callable[[], asyncio.AbstractEventLoop] = asyncio.events.new_event_loop

    def interrupted() -> asyncio.AbstractEventLoop:
        signal.raise_signal(signal.SIGINT)
        made.append(new())
        return made[0]

    monkeypatch.setattr(asyncio.events, "new_event_loop", interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_async(answer())
    assert made[0].is_closed()
    assert signal.getsignal(signal.SIGINT) is before
