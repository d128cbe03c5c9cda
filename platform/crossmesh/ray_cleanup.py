"""What a local Ray leaves behind: its processes, found by their environment, and its folder.

Also a program, which imports nothing but the standard library: `python ray_cleanup.py FOLDER` waits for the end of its standard input,
which comes however the process that holds the other end dies, and then clears the folder away.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_GRACE_S = 10.0
"""How long processes may take to end by themselves, and again after SIGTERM, before they are killed."""


def processes_of(folder: Path) -> list[int]:
    """Process ids of this machine that carry `RAY_TMPDIR=folder` in their environment, other than our own."""
    mark = f"RAY_TMPDIR={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # Gone, or another user's.
            continue
        if mark in variables:
            found.append(int(entry.name))
    return found


def end_processes(folder: Path, grace_s: float = _GRACE_S, ask_s: float = _GRACE_S) -> None:
    """Wait `grace_s` for the processes of the cluster in `folder` to end; ask those that do not, and kill them after `ask_s` more."""
    for ask, patience_s in ((None, grace_s), (signal.SIGTERM, ask_s), (signal.SIGKILL, _GRACE_S)):
        deadline = time.monotonic() + patience_s
        if ask is not None:
            for pid in processes_of(folder):
                with suppress(ProcessLookupError):
                    os.kill(pid, ask)
        while time.monotonic() < deadline:
            if not processes_of(folder):
                return
            time.sleep(0.1)


def clear(folder: Path) -> None:
    """End the processes of the cluster in `folder`, then remove it."""
    end_processes(folder)
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Have a process of its own clear `folder` when this one dies within the block, by SIGKILL or together with Ray."""
    command = [sys.executable, "-I", "-S", __file__, str(folder)]
    # In a session of its own: what is sent to this process group does not reach it.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True):
        yield


if __name__ == "__main__":
    sys.stdin.read()
    clear(Path(sys.argv[1]))
