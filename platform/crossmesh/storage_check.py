"""Whether a folder can hold what crossmesh keeps: the file operations that the rest of the package relies on, each tried once.

What is tried is what the code does: files and folders that appear by a rename (`files.py`), journals and events that others read while
they grow, leases (a file that is made only once), locks, and MLflow's sqlite file. A folder that has passed is not tried again from the
same machine and mount. Decides nothing about free space or about which nodes see the folder.
"""

import errno
import fcntl
import os
import shutil
import socket
import sqlite3
import struct
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from crossmesh.errors import InputError
from crossmesh.files import canonical_json, digest_text, write_json

_VERSION = 1
"""Raised when more is tried: what passed before is tried again."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_BUCKETS = ("gcsfuse", "s3fs", "mountpoint-s3", "goofys", "geesefs", "blobfuse", "rclone", "ossfs", "cosfs", "obsfs")
"""Programs that show a bucket as a folder. Some of what they lack shows only from a second machine, so they are known by name."""
_SQLITE_RESERVED_BYTE = 0x40000001
"""What sqlite locks while it writes (sqlite.org/fileformat2.html, "The Lock-Byte Page", and its os.h)."""
ON_BUCKETS = "checkpoint.target=gs://bucket/folder, model.weights=gs://bucket/folder and plan.answers=gs://bucket/folder"


@dataclass(frozen=True)
class Mount:
    """Where a folder lies."""

    point: str
    kind: str
    """Type of the file system: `ext4`, `nfs4`, `fuse.gcsfuse`."""
    source: str
    options: tuple[str, ...] = ()

    @property
    def bucket(self) -> str:
        """The program that shows a bucket here; empty for a file system."""
        if not self.kind.startswith("fuse"):
            return ""
        return next((name for name in _BUCKETS if name in self.kind or name in self.source), "")

    @property
    def of_network(self) -> bool:
        """Whether other machines may have it too."""
        return self.kind.startswith(("nfs", "lustre", "ceph", "gpfs", "beegfs", "glusterfs", "cifs", "9p", "virtiofs", "fuse"))

    @property
    def locks_stay_here(self) -> bool:
        """Whether locks keep out nobody on other machines."""
        return any(option == "nolock" or (option.startswith("local_lock=") and option != "local_lock=none") for option in self.options)


@dataclass(frozen=True)
class StorageFailure:
    """One operation that does not work."""

    operation: str
    reason: str


class _Unlike(Exception):  # noqa: N818
    """An operation that works, but not as it must."""


def require_storage(root: Path, *, sqlite: bool) -> None:
    """Raise `InputError` for a folder that cannot hold what crossmesh keeps, `OSError` for a full one.

    `sqlite`: whether MLflow keeps its runs there too. What passed is remembered in the folder, by machine and mount.
    """
    mount = mount_of(root)
    passed = root / "cache" / "storage" / f"{_key(root, mount, sqlite)}.json"
    if passed.exists():
        return
    found = failures(root, mount, sqlite=sqlite)
    if found:
        raise InputError(explain_failures(root, mount, found))
    with suppress(OSError):
        write_json(passed, {"machine": socket.gethostname(), "mount": mount.point, "kind": mount.kind, "sqlite": sqlite})


def explain_failures(root: Path, mount: Mount, found: tuple[StorageFailure, ...]) -> str:
    """Say what does not work, what does, and what may lie on a bucket."""
    listed = "; ".join(f"{one.operation}: {one.reason}" for one in found)
    return (
        f"storage.root={str(root)!r} ({mount.kind or 'unknown file system'}) cannot hold what crossmesh keeps there. {listed}. "
        "Runs, leases, journals and adapters need a local disk or a shared file system such as NFS (Filestore), mounted on every node; "
        f"a bucket may hold {ON_BUCKETS}. Set storage.root, or the environment variable CROSSMESH_STORAGE."
    )


def failures(root: Path, mount: Mount, *, sqlite: bool) -> tuple[StorageFailure, ...]:
    """Try each operation in a scratch folder under `root`; raises `OSError` when the disk is full, which says nothing of them."""
    if mount.bucket:
        reason = f"{mount.bucket} has no atomic rename of folders, no locks between machines, and shows what is appended only when closed"
        return (StorageFailure("a bucket is not a file system", reason),)
    try:
        scratch = Path(tempfile.mkdtemp(prefix=".storage-check-", dir=root))
    except OSError as error:
        return (StorageFailure("making a folder", _reason(error)),)
    try:
        tried = [_tried(name, attempt, scratch) for name, attempt in _OPERATIONS if sqlite or attempt is not _sqlite]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return tuple(one for one in tried if one is not None)


def mount_of(folder: Path, table: Path = Path("/proc/self/mountinfo")) -> Mount:
    """The mount that `folder` lies on, as the kernel lists it."""
    path, best = str(folder.resolve()), Mount("", "", "")
    try:
        lines = table.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return best
    for line in lines:
        first, _, last = line.partition(" - ")
        ours, theirs = first.split(), last.split()
        if len(ours) < 6 or len(theirs) < 3:
            continue
        point = ours[4].replace("\\040", " ")
        inside = path == point or path.startswith(f"{point.rstrip('/')}/")
        if inside and len(point) >= len(best.point):  # A later one on the same folder hides the earlier.
            best = Mount(point, theirs[0], theirs[1].replace("\\040", " "), (*ours[5].split(","), *theirs[2].split(",")))
    return best


def _key(root: Path, mount: Mount, sqlite: bool) -> str:
    said = [_VERSION, socket.gethostname(), str(root), mount.point, mount.kind, mount.source, *mount.options, sqlite]
    return digest_text(canonical_json(said))[:16]


def _tried(name: str, attempt: Callable[[Path], None], scratch: Path) -> StorageFailure | None:
    try:
        attempt(scratch)
    except (OSError, sqlite3.Error, _Unlike) as error:
        if getattr(error, "errno", None) in _FULL or getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(scratch.parent)) from error
        return StorageFailure(name, _reason(error))
    return None


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _replace(scratch: Path) -> None:
    old, new = scratch / "replaced", scratch / "new"
    old.write_text("old", encoding="ascii")
    new.write_text("new", encoding="ascii")
    new.replace(old)
    if old.read_text(encoding="ascii") != "new" or new.exists():
        raise _Unlike("the old content stayed")


def _rename_folder(scratch: Path) -> None:
    """Renamed whole; and one that is there, with something in it, is not replaced: `publish_folder` relies on it."""
    new, taken = scratch / "folder", scratch / "taken"
    for folder in (new, taken):
        folder.mkdir()
        (folder / "file").write_text(folder.name, encoding="ascii")
    try:
        new.rename(taken)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    else:
        raise _Unlike("a folder with files in it was replaced by another")
    new.rename(scratch / "published")
    if (scratch / "published" / "file").read_text(encoding="ascii") != "folder" or new.exists():
        raise _Unlike("the folder did not move whole")


def _append(scratch: Path) -> None:
    file = scratch / "appended"
    descriptors: list[int] = []
    try:
        for text in (b"one\n", b"two\n", b"three\n"):  # Each by a writer of its own, none of them closed.
            descriptors.append(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
            os.write(descriptors[-1], text)
        if file.read_bytes() != b"one\ntwo\nthree\n":
            raise _Unlike("a reader does not see what writers have appended")
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _exclusive(scratch: Path) -> None:
    file = scratch / "once"
    file.open("x", encoding="ascii").close()
    try:
        file.open("x", encoding="ascii").close()
    except FileExistsError:
        return
    raise _Unlike("a file was made twice")


def _fsync(scratch: Path) -> None:
    with (scratch / "synced").open("w", encoding="ascii") as stream:
        stream.write("synced")
        stream.flush()
        os.fsync(stream.fileno())
    descriptor = os.open(scratch, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(scratch: Path) -> None:
    """A lock keeps others out. Where there are none nothing is locked (`files.locked`, `track/mlflow/journal.py`), which is allowed for."""
    file = scratch / "lock"
    with file.open("a", encoding="ascii") as first, file.open("a", encoding="ascii") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return
            raise
        raise _Unlike("two have the same lock")


def _sqlite(scratch: Path) -> None:
    """A transaction with a rollback journal, as MLflow's store commits, which others are kept out of while it writes."""
    file = scratch / "database"
    with closing(sqlite3.connect(file, timeout=1, isolation_level=None)) as store:
        store.execute("PRAGMA journal_mode = DELETE")
        store.execute("CREATE TABLE runs (name TEXT)")
        store.execute("BEGIN IMMEDIATE")
        store.execute("INSERT INTO runs VALUES ('run')")
        store.execute("COMMIT")
        store.execute("BEGIN IMMEDIATE")
        locked = _record_locked(file)
    if not locked:
        raise _Unlike("two processes may write one database at once")
    with closing(sqlite3.connect(file, timeout=1)) as store:
        if store.execute("SELECT name FROM runs").fetchall() != [("run",)]:
            raise _Unlike("what was committed is not there")


def _record_locked(file: Path) -> bool:
    """Whether the byte that sqlite has locked is kept from another open file, which the kernel treats as another process."""
    wanted = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, _SQLITE_RESERVED_BYTE, 1, 0)
    with file.open("r+b") as stream:
        try:
            fcntl.fcntl(stream, fcntl.F_OFD_SETLK, wanted)
        except OSError:  # Locked; or a kernel that has no such locks, of which nothing is known then.
            return True
    return False


_OPERATIONS: tuple[tuple[str, Callable[[Path], None]], ...] = (
    ("replacing a file by another", _replace),
    ("renaming a folder", _rename_folder),
    ("appending to a file that others read", _append),
    ("making a file that only one may make", _exclusive),
    ("fsync of files and folders", _fsync),
    ("file locks", _lock),
    ("sqlite, in which MLflow keeps the runs", _sqlite),
)
