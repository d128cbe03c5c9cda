"""Run an untrusted command with nothing within its reach: bubblewrap, limits, and a bounded read of its output.

A command gets a few input files, an empty environment, a small writable folder in memory and read-only system folders. It has
no network, no `/etc`, no `/proc` and no other process in sight. What the command means, and whether its output is good, is
judged elsewhere. Exit codes are reported, not trusted: `vvp` returns 0 also when `$fopen` was refused.
"""

import math
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from crossmesh.errors import InputError, require_choice

_FOLDER = "/sandbox"
"""Where the command finds its files inside; the only place it can write."""
_PATH = "/usr/local/bin:/usr/bin:/bin"
_NOBODY = 65534
_SYSTEM_FOLDERS = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
"""Beside /usr; symbolic links into it on a merged-/usr system, folders on an older one."""

TIMEOUT = "timeout"
OUTPUT_LIMIT = "output_limit"


@dataclass(frozen=True)
class Limits:
    """What one command may use."""

    wall_s: float = 10.0
    """Wall-clock seconds."""
    cpu_s: float | None = None
    """CPU seconds of one process, rounded up; None: as many as `wall_s`."""
    memory_mib: int = 512
    """Address space of one process."""
    disk_mib: int = 16
    """All files it writes together (bubblewrap), or each (no sandbox)."""
    processes: int = 24
    """Processes at once. Only under bubblewrap, where they are counted apart from the user's others."""
    output_bytes: int = 1 << 18
    """Bytes of output that are read before the command is killed."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    returncode: int
    """Exit status; negative: the signal that ended it."""
    output: str
    """Standard output and error together, at most `Limits.output_bytes`."""
    stopped: str
    """Empty, or what made us kill it: `timeout` or `output_limit`."""
    seconds: float


@dataclass(frozen=True)
class Sandbox:
    """A checked way to run untrusted commands; made by `open_sandbox`."""

    kind: str
    """`bubblewrap` or `none`."""
    warning: str = ""
    """What a reader of the results must know; empty when there is nothing."""
    user: int | None = None
    """User id that bubblewrap is started as; None: the caller's."""
    folders: tuple[Path, ...] = ()
    """Folders beside the system's that hold programs to run; readable, not writable."""

    def run(self, command: Sequence[str], files: Mapping[str, str], limits: Limits) -> Outcome:
        """Run `command` in a fresh folder that holds `files` (plain names to text) and return how it ended.

        The whole process tree is gone when this returns. Safe to call from several threads.
        """
        place = _bubblewrap if self.kind == "bubblewrap" else _temporary_folder
        with place(command, files, limits, self.folders) as start:
            return _run(start, limits, self.user)


@dataclass(frozen=True)
class _Start:
    """What `subprocess.Popen` needs to start a command in its place."""

    argv: list[str]
    environment: Mapping[str, str]
    descriptors: tuple[int, ...] = ()
    folder: str | None = None


def open_sandbox(name: str, programs: tuple[str, ...] = ()) -> Sandbox:
    """Return the sandbox `name` (`bubblewrap` or `none`) after trying that it works on this machine.

    Args:
        name: value of `eval.sandbox`.
        programs: programs to run in it; one installed outside the system's folders is made visible with its prefix.

    Raises:
        InputError: bubblewrap is missing, or the kernel does not let it create its namespaces.
    """
    require_choice("eval.sandbox", name, ("bubblewrap", "none"))
    if name == "none":
        return Sandbox("none", warning="generated code ran without a sandbox (eval.sandbox=none)", folders=_prefixes(programs))
    return _working_bubblewrap(_prefixes(programs))


def _prefixes(programs: tuple[str, ...]) -> tuple[Path, ...]:
    """Return the installation prefixes, `/opt/x` of `/opt/x/bin/program`, of programs outside the system's folders."""
    paths = (Path(path).resolve() for program in programs if (path := shutil.which(program)))
    return tuple(dict.fromkeys(path.parents[1] for path in paths if path.parts[1] not in ("usr", *_SYSTEM_FOLDERS)))


@cache
def _working_bubblewrap(folders: tuple[Path, ...]) -> Sandbox:
    """Find the user as whom bubblewrap works. Root steps down to nobody first: the kernel exempts root from process limits."""
    if shutil.which("bwrap") is None:
        raise InputError(
            "eval.sandbox=bubblewrap needs the program bwrap, which is not installed. Install it: sudo apt-get install bubblewrap. "
            "To run generated code unprotected instead, set eval.sandbox=none."
        )
    complaint = ""
    for user in (_NOBODY, None) if os.geteuid() == 0 else (None,):
        sandbox = Sandbox("bubblewrap", user=user, folders=folders)
        try:
            outcome = sandbox.run(["echo", "ready"], {}, Limits(memory_mib=256))
        except OSError as error:
            complaint = str(error)
            continue
        if outcome.returncode == 0 and outcome.output == "ready\n":
            return sandbox
        complaint = outcome.output.strip() or f"exit status {outcome.returncode}"
    raise InputError(
        f"eval.sandbox=bubblewrap cannot create its namespaces on this machine ({complaint}). It needs bubblewrap 0.8 or newer and "
        "unprivileged user namespaces: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0, or in a container "
        "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined. "
        "To run generated code unprotected instead, set eval.sandbox=none."
    )


def _environment(home: str, folders: Sequence[Path]) -> dict[str, str]:
    """Return the whole environment of a command."""
    return {"PATH": ":".join([*(str(folder / "bin") for folder in folders), _PATH]), "LC_ALL": "C", "HOME": home, "TMPDIR": home}


def _limited(command: Sequence[str], limits: Limits, processes: int | None) -> list[str]:
    """Prefix `command` with prlimit: its limits hold for the command, not for the sandbox program that starts it."""
    size = limits.disk_mib << 20
    options = [
        f"--as={limits.memory_mib << 20}",
        f"--cpu={math.ceil(limits.cpu_s or limits.wall_s)}",
        f"--fsize={size}",
        "--core=0",
        "--nofile=64",
    ]
    if processes is not None:
        options.append(f"--nproc={processes}")
    return ["prlimit", *options, "--", *command]


@cache
def _system_mounts() -> tuple[str, ...]:
    """Bubblewrap arguments that show the system's programs and libraries, read-only."""
    mounts = ["--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM_FOLDERS:
        path = Path("/", name)
        if path.is_symlink():
            mounts += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            mounts += ["--ro-bind", str(path), str(path)]
    return tuple(mounts)


@contextmanager
def _bubblewrap(command: Sequence[str], files: Mapping[str, str], limits: Limits, folders: Sequence[Path]) -> Iterator[_Start]:
    """Wrap `command` in bubblewrap. Its files go in through memory, so the host's file system is not touched at all.

    There is no `/proc` and only `/dev/null`: simulators need neither, and mounting them fails inside many containers.
    """
    argv = [
        shutil.which("bwrap") or "bwrap",
        "--unshare-all",
        "--unshare-user",
        "--uid",
        "1000",
        "--gid",
        "1000",
        "--hostname",
        "sandbox",
        "--cap-drop",
        "ALL",
    ]
    argv += ["--new-session", "--die-with-parent", "--clearenv"]
    for key, value in _environment(_FOLDER, folders).items():
        argv += ["--setenv", key, value]
    for folder in folders:
        argv += ["--ro-bind", str(folder), str(folder)]
    argv += [*_system_mounts(), "--dev-bind", "/dev/null", "/dev/null", "--size", str(limits.disk_mib << 20), "--tmpfs", _FOLDER]
    descriptors: list[int] = []
    try:
        for name, text in files.items():
            descriptors.append(os.memfd_create(name))
            with os.fdopen(os.dup(descriptors[-1]), "wb") as stream:
                stream.write(text.encode())
            os.lseek(descriptors[-1], 0, os.SEEK_SET)
            argv += ["--file", str(descriptors[-1]), f"{_FOLDER}/{name}"]
        argv += ["--remount-ro", "/", "--chdir", _FOLDER, "--", *_limited(command, limits, limits.processes)]
        yield _Start(argv, {}, tuple(descriptors))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@contextmanager
def _temporary_folder(command: Sequence[str], files: Mapping[str, str], limits: Limits, folders: Sequence[Path]) -> Iterator[_Start]:
    """Give `command` a temporary folder and limits, and no protection."""
    with tempfile.TemporaryDirectory(prefix="crossmesh-", ignore_cleanup_errors=True) as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        # The process limit is left out: here it would count every process of this user on the machine.
        yield _Start(_limited(command, limits, None), _environment(folder, folders), folder=folder)


def _run(start: _Start, limits: Limits, user: int | None) -> Outcome:
    """Start the command, read what it prints up to the limits, and leave none of its processes behind."""
    began = time.monotonic()
    process = subprocess.Popen(
        start.argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=start.folder,
        env=start.environment,
        pass_fds=start.descriptors,
        start_new_session=True,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )
    try:
        output, stopped = _read(process, began + limits.wall_s, limits.output_bytes)
    finally:
        _end(process)
    return Outcome(process.returncode, output.decode(errors="replace"), stopped, time.monotonic() - began)


def _read(process: subprocess.Popen[bytes], deadline: float, limit: int) -> tuple[bytes, str]:
    """Return the output until the command ended, the deadline passed or `limit` bytes came, and which of the last two it was."""
    if process.stdout is None:
        raise AssertionError("the command was started without a pipe")
    descriptor = process.stdout.fileno()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP)
    output = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return output, TIMEOUT
        block = os.read(descriptor, 1 << 16)
        if not block:
            break
        output += block
        if len(output) > limit:
            return output[:limit], OUTPUT_LIMIT
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return output, TIMEOUT
    return output, ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the command's session; bubblewrap takes its process namespace with it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
