"""Ends a job with one message when the head of its Ray cluster stays away.

Ray itself would abort the process after a minute, with a stack of C++ and a signal. Nothing can be asked of Ray then, not even to let go:
the process ends at once, as a killed one does, and the same command goes on from what is on disk.
"""

import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from crossmesh.errors import CrossmeshError

PATIENCE_S = 45.0
"""Less than Ray's own `gcs_rpc_server_reconnect_timeout_s` of 60; a GCS that is started again (`head_keeper.py`) needs seconds."""
_LOOK_S = 1.0
_CONNECT_S = 5.0
_PAUSE_S = 15.0
"""Between two looks: more means that this process, or its machine, was stopped meanwhile."""
_ABSENT = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN}


class Absence:
    """How long nothing has answered that did before: an address that is never reached from here says nothing."""

    def __init__(self, patience_s: float) -> None:
        """`patience_s` is how long it may be."""
        self._patience_s = patience_s
        self._since: float | None = None
        self._looked: float | None = None
        self._reached = False

    def seen(self, answers: bool, now: float) -> bool:
        """Note a look at the time `now`; whether patience is over."""
        paused = self._looked is not None and now - self._looked > _PAUSE_S
        self._looked = now
        self._reached |= answers
        if paused:
            self._since = None
        if answers or not self._reached:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        return now - self._since >= self._patience_s


def head_lost_message(address: str) -> str:
    """What the person is told."""
    return (
        f"The head of the Ray cluster at {address} has not answered for {PATIENCE_S:.0f} s: this job cannot go on. Start the head again "
        "and run the same command: it continues from its newest checkpoint (docs/reliability.md)."
    )


@contextmanager
def watched(address: str, end: Callable[[str], None] | None = None) -> Iterator[None]:
    """While the block runs, look whether the GCS at `address`, host:port, answers; when it stays away, `end` the process."""
    done = threading.Event()
    host, _, port = address.rpartition(":")

    def watch() -> None:
        absence = Absence(PATIENCE_S)
        while not done.wait(_LOOK_S):
            if absence.seen(_answers(host.strip("[]"), int(port)), time.monotonic()):
                (end or _end)(head_lost_message(address))
                return

    threading.Thread(target=watch, name="head-watch", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_S).close()
    except (ConnectionError, TimeoutError):
        return False
    except OSError as error:  # No file descriptor left here, say, is nothing that the head does.
        return error.errno not in _ABSENT
    return True


def _end(text: str) -> None:
    sys.stderr.write(f"\ncrossmesh: {text}\n")
    sys.stderr.flush()
    os._exit(CrossmeshError.exit_code)
