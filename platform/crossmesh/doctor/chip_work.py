"""How one chip is measured by either framework: how much it is given to do, on an accelerator (`True`) and on a CPU; how it is timed."""

import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

SIZE = {True: 8192, False: 512}
"""Rows of the square bfloat16 factors: large enough that a chip's matrix units have no gaps."""
COPIED = {True: 1 << 30, False: 1 << 26}
"""Bytes read, and as many written: far more than any cache."""
ENOUGH_S = 0.1
"""A round lasts so long at least: what a call costs to send is hidden by the calls before it."""
ROUNDS = 3


def seconds_of(call: Callable[[], object], wait: Callable[[object], object]) -> float:
    """Wall clock of one `call`: the fastest of some rounds of calls whose last result is waited for."""

    def round_of(count: int) -> float:
        start = time.perf_counter()
        done: object = None
        for _ in range(count):
            done = call()
        wait(done)
        return time.perf_counter() - start

    count = 1
    round_of(count)
    while (took := round_of(count)) < ENOUGH_S:
        count = max(2 * count, int(count * ENOUGH_S / max(took, 1e-6)))
    return min(round_of(count) for _ in range(ROUNDS)) / count


def version_of(package: str) -> str:
    """Of an installed package; empty without it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
