"""Room and time on this machine: disks, shared memory, memory, the clock."""

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from crossmesh.cluster.session import users_cluster
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.doctor.finding import Finding, fault, note, ok
from crossmesh.hardware.devices import Cpu

_GIB = 1 << 30
_FULL, _SCARCE = 1 * _GIB, 10 * _GIB
"""Free space: below the first no checkpoint of a small model may fit; below the second that of a large one."""
_SHARED = Path("/dev/shm")  # noqa: S108  # It is looked at, not written to.
SHARED_MEMORY = 512 << 20
"""Ray's object store of a local job (`cluster.py`; a test holds both together)."""
_SMALLEST_JOB = 2.3e9
"""Resident bytes of a pipeline that serves tiny_gemma4: driver, engine, replica, controller, proxy (measured; shared pages in each)."""
_ROOMY = 8 * _GIB
_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def check_disks(spec: ExperimentSpec) -> Iterator[Finding]:
    """Free space where a job writes."""
    places = (("storage.root", spec.storage.path, "CROSSMESH_STORAGE"), ("temporary folder", Path(tempfile.gettempdir()), "TMPDIR"))
    for name, folder, variable in places:
        yield disk_finding(name, folder, shutil.disk_usage(folder).free, variable)
    yield shared_memory_finding(shutil.disk_usage(_SHARED).total if _SHARED.is_dir() else None)


def disk_finding(name: str, folder: Path, free: int, variable: str) -> Finding:
    """What `free` bytes in `folder` mean."""
    title, found = f"disk, {name}", f"{free / _GIB:.1f} GiB free in {folder}"
    if free >= _SCARCE:
        return ok(title, found)
    mend = f"export {variable}=/folder/on/a/larger/disk    # or make room in {shlex.quote(str(folder))}"
    return fault(title, found, mend) if free < _FULL else note(title, found, mend)


def shared_memory_finding(total: int | None) -> Finding:
    """What `total` bytes of /dev/shm mean; None: there is none."""
    if total is None:
        return note(str(_SHARED), "there is none: Ray keeps its objects on disk")
    if total >= SHARED_MEMORY:
        return ok(str(_SHARED), f"{total / _GIB:.1f} GiB")
    found = f"{total >> 20} MiB, less than Ray's object store ({SHARED_MEMORY >> 20} MiB); NCCL and vLLM share memory there too"
    return fault(str(_SHARED), found, "sudo mount -o remount,size=2g /dev/shm    # a container: docker run --shm-size=2g")


def check_memory(_spec: ExperimentSpec) -> Iterator[Finding]:
    """Memory that is free for a job, within the limit of a container."""
    available = psutil.virtual_memory().available
    for file in _CGROUPS:
        with suppress(OSError, ValueError):
            available = min(available, int(file.read_text(encoding="ascii")))
    yield memory_finding(available)


def memory_finding(available: int) -> Finding:
    """What `available` bytes mean."""
    found = f"{available / _GIB:.1f} GiB available, {len(os.sched_getaffinity(0))} cores"
    mend = "ps -eo pid,rss,args --sort=-rss | head    # end what is not needed, or raise the container's limit"
    if available < _SMALLEST_JOB:
        return fault("memory", f"{found}; the smallest model that is served takes {_SMALLEST_JOB / _GIB:.1f} GiB", mend)
    return ok("memory", found) if available >= _ROOMY else note("memory", found, mend)


def check_clock(spec: ExperimentSpec) -> Iterator[Finding]:
    """Whether the time is synchronized: tokens, certificates and what several nodes write carry it."""
    yield clock_finding(synchronized(), several=users_cluster() is not None or not isinstance(spec.hardware.slice.device, Cpu))


def clock_finding(found: bool | None, *, several: bool) -> Finding:
    """What it means that the clock is synchronized, is not, or that nobody knows; `several`: other machines take part."""
    if found is None:
        return note("clock", "neither timedatectl nor chronyc says whether it is synchronized")
    if found:
        return ok("clock", "synchronized")
    mend = "sudo timedatectl set-ntp true"
    return fault("clock", "not synchronized", mend) if several else note("clock", "not synchronized", mend)


def synchronized() -> bool | None:
    """What timedatectl says, or else chrony; None where neither does."""
    said = printed("timedatectl", "show", "--property=NTPSynchronized", "--value")
    if said in ("yes", "no"):
        return said == "yes"
    said = printed("chronyc", "-n", "tracking")
    return "Not synchronised" not in said if "Leap status" in said else None


def printed(*command: str, seconds: float = 3.0) -> str:
    """What a command prints; empty where it is not there, fails or takes longer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
