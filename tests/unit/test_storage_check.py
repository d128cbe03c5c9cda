"""A folder without one of the operations that crossmesh relies on is refused by that operation's name; one that passed costs nothing."""

import errno
import fcntl
import os
import sqlite3
import time
from pathlib import Path

import pytest

from crossmesh import storage_check
from crossmesh.errors import InputError
from crossmesh.storage_check import Mount, failures, mount_of, require_storage

LOCAL = Mount("/", "ext4", "/dev/sda")


def raises(number: int):
    def call(*_arguments: object, **_named: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


def operations(root: Path, *, sqlite: bool = True) -> list[str]:
    return [f"{one.operation}: {one.reason}" for one in failures(root, LOCAL, sqlite=sqlite)]


def test_a_local_disk_passes_and_nothing_is_left(tmp_path):
    assert failures(tmp_path, mount_of(tmp_path), sqlite=True) == ()
    assert list(tmp_path.iterdir()) == []


def test_no_rename_over_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "replace", raises(errno.EOPNOTSUPP))
    assert operations(tmp_path) == ["replacing a file by another: Operation not supported"]


def test_a_rename_that_copies_and_leaves_the_old_name(tmp_path, monkeypatch):
    def copy(old, new):
        Path(new).write_bytes(Path(old).read_bytes())

    monkeypatch.setattr(os, "replace", copy)
    assert operations(tmp_path) == ["replacing a file by another: the old content stayed"]


def test_no_rename_of_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "rename", raises(errno.ENOSYS))
    assert operations(tmp_path) == ["renaming a folder: Function not implemented"]


def test_a_rename_that_replaces_a_folder_with_files_in_it(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "rename", lambda old, new: None)
    assert operations(tmp_path) == ["renaming a folder: a folder with files in it was replaced by another"]


def test_no_append(tmp_path, monkeypatch):
    opened = os.open

    def refuse(path, flags, *rest, **named):
        if flags & os.O_APPEND and "lock" not in str(path):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return opened(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)
    assert operations(tmp_path) == ["appending to a file that others read: Operation not supported"]


def test_an_append_that_is_seen_only_when_the_file_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "write", lambda _descriptor, data: len(data))
    assert operations(tmp_path) == ["appending to a file that others read: a reader does not see what writers have appended"]


def test_an_exclusive_create_that_is_none(tmp_path, monkeypatch):
    opened = Path.open

    def not_exclusive(self, mode="r", **named):
        return opened(self, "w" if mode == "x" else mode, **named)

    monkeypatch.setattr(Path, "open", not_exclusive)
    assert operations(tmp_path) == ["making a file that only one may make: a file was made twice"]


def test_no_fsync(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", raises(errno.EINVAL))
    assert operations(tmp_path) == ["fsync of files and folders: Invalid argument"]


def test_locks_that_lock_nothing_are_refused_and_no_locks_at_all_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    assert operations(tmp_path) == ["file locks: two have the same lock"]
    monkeypatch.setattr(fcntl, "flock", raises(errno.ENOLCK))
    assert operations(tmp_path) == []
    monkeypatch.setattr(fcntl, "flock", raises(errno.EIO))
    assert operations(tmp_path) == ["file locks: Input/output error"]


def test_sqlite_that_cannot_lock_matters_where_mlflow_keeps_its_runs_there(tmp_path, monkeypatch):
    def refuse(*_arguments, **_named):
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(sqlite3, "connect", refuse)
    assert operations(tmp_path) == ["sqlite, in which MLflow keeps the runs: disk I/O error"]
    assert operations(tmp_path, sqlite=False) == []


def test_sqlite_whose_locks_keep_nobody_out(tmp_path, monkeypatch):
    assert storage_check._record_locked(_database(tmp_path)) is False  # Nobody writes, so the kernel grants the lock.
    monkeypatch.setattr(fcntl, "fcntl", lambda *_: b"")
    assert operations(tmp_path) == ["sqlite, in which MLflow keeps the runs: two processes may write one database at once"]


def _database(folder: Path) -> Path:
    file = folder / "unlocked.db"
    sqlite3.connect(file).execute("CREATE TABLE one (two TEXT)").connection.close()
    return file


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_no_verdict(tmp_path, monkeypatch, number):
    monkeypatch.setattr(os, "fsync", raises(number))
    with pytest.raises(OSError, match="No space left on device"):
        failures(tmp_path, LOCAL, sqlite=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "source", "bucket"),
    [
        ("fuse.gcsfuse", "my-bucket", "gcsfuse"),
        ("fuse", "mountpoint-s3", "mountpoint-s3"),
        ("fuse.rclone", "remote:bucket", "rclone"),
        ("fuse.sshfs", "host:/folder", ""),
        ("nfs4", "10.0.0.2:/gcsfuse", ""),
        ("ext4", "/dev/sda", ""),
    ],
)
def test_buckets_are_known_by_what_mounts_them(tmp_path, kind, source, bucket):
    mount = Mount("/mnt", kind, source)
    assert mount.bucket == bucket
    assert [one.operation for one in failures(tmp_path, mount, sqlite=True)] == (["a bucket is not a file system"] if bucket else [])


def test_the_mount_of_a_folder_is_the_nearest_and_newest(tmp_path):
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
        "23 22 0:40 / /mnt rw,relatime - tmpfs tmpfs rw\n"
        "24 22 0:41 / /mnt/shared\\040data rw,noatime shared:7 - nfs4 10.0.0.2:/vol1 rw,hard,local_lock=none\n"
        "25 22 0:42 / /mnt/bucket rw - ext4 /dev/sdb rw\n"
        "26 22 0:43 / /mnt/bucket rw - fuse.gcsfuse my-bucket rw\n"
    )
    assert mount_of(Path("/mnt/shared data/crossmesh"), table).source == "10.0.0.2:/vol1"
    assert not mount_of(Path("/mnt/shared data/crossmesh"), table).locks_stay_here
    assert mount_of(Path("/mnt/shared"), table).kind == "tmpfs"
    assert mount_of(Path("/mnt/bucket"), table).bucket == "gcsfuse"
    assert mount_of(Path("/mntx"), table).point == "/"
    assert mount_of(Path("/mntx"), tmp_path / "none").kind == ""
    assert Mount("/", "nfs", "", ("rw", "nolock")).locks_stay_here
    assert Mount("/", "nfs", "", ("rw", "local_lock=all")).locks_stay_here


def test_the_message_says_what_fails_and_what_a_bucket_may_hold(tmp_path, monkeypatch):
    monkeypatch.setattr(storage_check, "mount_of", lambda _: Mount("/mnt", "fuse.gcsfuse", "my-bucket"))
    with pytest.raises(InputError) as caught:
        require_storage(tmp_path, sqlite=True)
    message = str(caught.value)
    for part in (
        f"storage.root={str(tmp_path)!r}",
        "fuse.gcsfuse",
        "no atomic rename",
        "NFS",
        "checkpoint.target=gs://",
        "CROSSMESH_STORAGE",
    ):
        assert part in message
    assert "\n" not in message


def test_what_passed_is_not_tried_again_until_machine_mount_or_need_change(tmp_path, monkeypatch):
    require_storage(tmp_path, sqlite=False)
    monkeypatch.setattr(os, "fsync", raises(errno.EINVAL))
    start = time.perf_counter()
    require_storage(tmp_path, sqlite=False)
    assert time.perf_counter() - start < 0.05
    with pytest.raises(InputError, match="fsync"):
        require_storage(tmp_path, sqlite=True)
    monkeypatch.setattr(storage_check, "mount_of", lambda _: Mount("/other", "nfs4", "10.0.0.2:/vol1"))
    with pytest.raises(InputError, match="fsync"):
        require_storage(tmp_path, sqlite=False)
    monkeypatch.undo()
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    monkeypatch.setattr(os, "fsync", raises(errno.EINVAL))
    with pytest.raises(InputError, match="fsync"):
        require_storage(tmp_path, sqlite=False)


def test_what_failed_is_tried_again(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", raises(errno.EINVAL))
        with pytest.raises(InputError, match="fsync"):
            require_storage(tmp_path, sqlite=True)
    require_storage(tmp_path, sqlite=True)
