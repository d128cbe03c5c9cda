"""Folders that somebody asked for by name: refused when they hold something, whole when they appear, taken up again after a crash."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crossmesh.errors import InputError, require
from crossmesh.files import locked


def require_empty(folder: Path) -> None:
    """Raise `InputError` unless `folder` is absent, or a folder with nothing in it."""
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise InputError(f"{folder} is not empty. It is left as it is: give a folder that is empty or does not exist.")


def output_folder(folder: str) -> Path:
    """Return the absolute path of `folder`, a job's key. Raises `InputError` when it is not given or holds something."""
    require(bool(folder), "folder", folder, "a folder that is empty or does not exist")
    path = Path(folder).expanduser().absolute()
    require_empty(path)
    return path


@contextmanager
def resumable_folder(folder: Path) -> Iterator[Path]:
    """Yield `.<name>.partial` beside `folder`, which becomes `folder` when the block ends without an error.

    One process at a time has it. After an `InputError` it is removed, as going on would not help; after another error it stays, so that
    the same call can go on. `InputError` when `folder` is not empty.
    """
    require_empty(folder)
    staging, lock = (folder.with_name(f".{folder.name}.{end}") for end in ("partial", "lock"))
    with locked(lock):
        try:
            require_empty(folder)  # Another process may have finished meanwhile.
            yield staging
            for file in staging.iterdir():
                _fsync(file)
            _fsync(staging)
            staging.rename(folder)
            _fsync(folder.parent)
        except InputError:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        finally:
            if not staging.exists():
                lock.unlink(missing_ok=True)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
