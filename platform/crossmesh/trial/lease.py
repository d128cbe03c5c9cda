"""A lease on something under shared storage: one job at a time has it, on whatever host, and one that died is succeeded.

The owner's file says every few seconds that it lives. Who waits looks at whether that changes, by its own clock, so clocks of hosts may
differ; an owner on the same machine whose process is gone is succeeded at once. Each owner has a file of its own whose number is one higher
than the last: that a file with a name is made only once is all that is asked of the file system. It needs no locks.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from crossmesh.errors import CrossmeshError
from crossmesh.files import read_json, write_json

_SUFFIX = ".json"
_LOOK_S = 0.5


class LeaseLostError(CrossmeshError):
    """Another job has taken the lease over, because this one had not been heard of for too long."""


@dataclass(frozen=True)
class Clock:
    """How often an owner says that it lives, and how long others wait for that."""

    beat_s: float = 5.0
    timeout_s: float = 60.0


class Lease:
    """A lease that this process has; `check` says when it has not any more."""

    def __init__(self, folder: Path, number: int, clock: Clock) -> None:
        self._folder = folder
        self._number = number
        self._clock = clock
        self._beats = 0
        self._said = time.monotonic()
        self._lost = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise `LeaseLostError` when another job has it."""
        if time.monotonic() - self._said > self._clock.timeout_s:  # This process stood still, or its storage did.
            self._look()
        if self._lost:
            raise LeaseLostError(
                f"Another job has taken {self._folder.stem} over: this one had not been heard of for {self._clock.timeout_s:.0f} s. "
                "Run the same command again to wait for it."
            )

    def release(self) -> None:
        """Let the next one have it at once."""
        self._ended.set()
        self._thread.join()
        self._look()
        if not self._lost:
            with suppress(OSError):  # Who waits then waits for the time-out.
                write_json(_file(self._folder, self._number), _content(self._beats, released=True))

    def _run(self) -> None:
        while not self._ended.wait(self._clock.beat_s):
            self._look()
            if self._lost:
                return
            self._beats += 1
            with suppress(OSError):  # A storage that is away for a moment: the next beat may arrive.
                write_json(_file(self._folder, self._number), _content(self._beats))
                self._said = time.monotonic()

    def _look(self) -> None:
        with suppress(OSError):
            self._lost = self._lost or newest(self._folder) > self._number


@contextmanager
def leased(
    folder: Path, on_wait: Callable[[], None] = lambda: None, check: Callable[[], None] = lambda: None, clock: Clock | None = None
) -> Iterator[Lease]:
    """Have the lease `folder` within the block.

    Args:
        folder: a folder of its own, made if need be.
        on_wait: called once when another job has it.
        check: called several times a second while waiting; what it raises ends that.
        clock: for tests.
    """
    clock = clock or Clock()
    folder.mkdir(parents=True, exist_ok=True)
    lease = _acquire(folder, on_wait, check, clock)
    try:
        yield lease
    finally:
        lease.release()


def newest(folder: Path) -> int:
    """The number of the newest owner; 0 when there was none."""
    return max((int(file.stem) for file in folder.glob(f"[0-9]*{_SUFFIX}")), default=0)


def owner(folder: Path) -> dict[str, Any] | None:
    """What the newest owner last said: `pid`, `at` (seconds since 1970), `released`; None when there is none to be read."""
    with suppress(OSError, ValueError):
        return {**read_json(_file(folder, newest(folder)))}
    return None


def _acquire(folder: Path, on_wait: Callable[[], None], check: Callable[[], None], clock: Clock) -> Lease:
    seen: tuple[int, Any] | None = None
    since = time.monotonic()
    waited = False
    while True:
        number = newest(folder)
        said = owner(folder) if number else {"released": True}
        now = (number, said and said.get("beat"))
        if now != seen:
            seen, since = now, time.monotonic()
        silent = time.monotonic() - since >= clock.timeout_s
        if (silent or _free(said)) and _claim(folder, number + 1):
            return Lease(folder, number + 1, clock)
        if _free(said):  # Another one was faster.
            continue
        if not waited:
            on_wait()
            waited = True
        check()
        time.sleep(_LOOK_S)


def _free(said: dict[str, Any] | None) -> bool:
    """Whether the owner has let go, or is a process of this machine that has ended. None: not known yet."""
    if said is None:
        return False
    return bool(said.get("released")) or (said.get("machine") == _machine() and not _lives(said.get("pid"), said.get("started")))


def _claim(folder: Path, number: int) -> bool:
    """Make the file of the next owner; False when somebody else has."""
    file = _file(folder, number)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(json.dumps(_content(0)))
    except FileExistsError:
        return False
    if newest(folder) > number:  # The number was free because later owners had tidied it away.
        file.unlink(missing_ok=True)
        return False
    for old in folder.glob(f"[0-9]*{_SUFFIX}"):
        if int(old.stem) < number:
            old.unlink(missing_ok=True)
    return True


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number}{_SUFFIX}"


def _content(beat: int, *, released: bool = False) -> dict[str, Any]:
    process = psutil.Process()
    own = {"machine": _machine(), "pid": process.pid, "started": process.create_time()}
    return {**own, "beat": beat, "at": time.time(), "released": released}


def _machine() -> str:
    """This machine since it was started, and which of its processes we see: containers share the first and not the second."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    with suppress(OSError):
        return f"{boot.read_text(encoding='ascii').strip()} {Path('/proc/self/ns/pid').readlink()}"
    return os.uname().nodename


def _lives(pid: Any, started: Any) -> bool:
    try:
        return bool(abs(psutil.Process(int(pid)).create_time() - float(started)) < 1.0)
    except (psutil.NoSuchProcess, TypeError, ValueError):
        return False
