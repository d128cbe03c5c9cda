"""What a training worker is told from outside while it trains: the driver's request to stop, and that its node is taken away.

It only notices; what follows is the loop's.
"""

import faulthandler
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from crossmesh.compat.ray_train import has_preemption_notice
from crossmesh.train.loop import Interruption


@contextmanager
def interruptions(stop: Path) -> Iterator[Callable[[], Interruption | None]]:
    """Yield a function that says why to end: the file `stop` exists, Ray has notice of a preemption, or this process got a SIGTERM.

    Training runs in a thread, where Python lets nobody handle signals. `faulthandler` may be told from any thread to write where the
    process was at a SIGTERM: that something was written is the news. Ray's own handler, which exits at once, is back after the block.
    """
    with tempfile.TemporaryFile() as noted:
        faulthandler.register(signal.SIGTERM, file=noted, all_threads=False, chain=False)

        def seen() -> Interruption | None:
            if stop.exists():
                return "stopped"
            return "preempted" if os.fstat(noted.fileno()).st_size or has_preemption_notice() else None

        try:
            yield seen
        finally:
            faulthandler.unregister(signal.SIGTERM)
