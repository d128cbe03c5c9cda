"""Keeps the GCS of this machine's Ray head running: Ray itself starts it once, and gives a cluster up a minute after it died.

A program that imports nothing but the standard library: `python head_keeper.py PORT`, started before or after `ray start --head`. It starts
the GCS again with the same arguments, which reads what it knew from `RAY_gcs_storage_path`; nodes, actors, jobs and servers stay. It ends
with the head's raylet (`ray stop`, or the death of the machine).
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LOOK_S = 1.0
_START_S = 120.0
"""How long the head may take to appear."""
_AGAIN_S = 5.0
"""Between two starts of a GCS that ends at once."""


@dataclass(frozen=True)
class Process:
    """A process as it was started."""

    pid: int
    arguments: tuple[str, ...]
    variables: dict[str, str]

    def is_alive(self) -> bool:
        """Whether it runs; one that has ended and that nobody has asked about does not."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
        except OSError:
            return False


def processes(program: str) -> Iterator[Process]:
    """Processes of this user whose executable is called `program`."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = [part.decode() for part in (entry / "cmdline").read_bytes().split(b"\0")[:-1]]
            if not arguments or Path(arguments[0]).name != program:
                continue
            pairs = [part.decode().partition("=") for part in (entry / "environ").read_bytes().split(b"\0") if part]
        except (OSError, UnicodeDecodeError):  # Gone, or another user's.
            continue
        found = Process(int(entry.name), tuple(arguments), {name: value for name, _, value in pairs})
        if found.is_alive():
            yield found


def gcs_of(port: int) -> Process | None:
    """The GCS that listens on `port`."""
    return next((one for one in processes("gcs_server") if f"--gcs_server_port={port}" in one.arguments), None)


def raylet_of(port: int) -> Process | None:
    """A raylet of this machine that belongs to the GCS on `port`."""
    wanted = f":{port}"
    belongs = (one for one in processes("raylet") if any(a.startswith("--gcs-address=") and a.endswith(wanted) for a in one.arguments))
    return next(belongs, None)


def keep_gcs_running(port: int) -> int:
    """Start the GCS on `port` again whenever it dies, until the head's raylet is gone; return how often. Raises `SystemExit`."""
    deadline = time.monotonic() + _START_S
    while not ((gcs := gcs_of(port)) and (raylet := raylet_of(port))):
        if time.monotonic() > deadline:
            raise SystemExit(f"No head of Ray with --port={port} came up in {_START_S:.0f} s.")
        time.sleep(_LOOK_S)
    if gcs.variables.get("RAY_gcs_storage") != "rocksdb":
        raise SystemExit("The GCS keeps what it knows in memory: starting it again would lose the cluster. Set RAY_gcs_storage=rocksdb.")
    starts = 0
    while raylet.is_alive():
        if not gcs.is_alive():
            time.sleep(_LOOK_S)  # `ray stop` ends the raylet first: then there is nothing to keep.
            if not raylet.is_alive():
                break
            started = subprocess.Popen(
                gcs.arguments,
                env=gcs.variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            gcs = Process(started.pid, gcs.arguments, gcs.variables)
            starts += 1
            sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} the GCS on port {port} had died; started again (pid {started.pid})\n")
            sys.stderr.flush()
            time.sleep(_AGAIN_S)
        time.sleep(_LOOK_S)
    return starts


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # A GCS that dies leaves no zombie.
    os.chdir("/")
    keep_gcs_running(int(sys.argv[1]))
