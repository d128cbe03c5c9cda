"""Files that are complete or absent: atomic writes, locks, digests and canonical JSON.

Used by every room that stores something. Knows nothing of what the files mean.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_BLOCK = 1 << 20
_HALVES = "backslashreplace"
"""Half of a surrogate pair has no UTF-8. This writes `\\ud835`, which in JSON is the escape of just that."""


def canonical_json(value: Any) -> str:
    """Render `value` as JSON with sorted keys and no spaces, so that equal values have equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON that comes from outside; raises `ValueError` for whatever cannot be parsed, nesting that is too deep included."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def digest_text(text: str) -> str:
    """Return the SHA-256 of `text` in UTF-8, as hex; half of a surrogate pair counts as its JSON escape."""
    return hashlib.sha256(text.encode(errors=_HALVES)).hexdigest()


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, as hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def write_text(path: Path, text: str | Iterable[str]) -> None:
    """Write `text`, whole or in parts, so that `path` holds either its old content or all of the new, also after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("w", encoding="utf-8", errors=_HALVES) as stream:
            stream.writelines([text] if isinstance(text, str) else text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically (see `write_text`)."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path` that becomes `path` (see `publish_folder`) when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    temporary.mkdir()
    try:
        yield temporary
        publish_folder(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def publish_folder(temporary: Path, path: Path) -> None:
    """Rename `temporary`, a folder beside `path`, to `path`, so that `path` is there whole or not at all, also after a crash.

    Every file in it is fsynced first. When another process has made `path` meanwhile, theirs stays and ours is dropped.
    """
    for entry in (temporary, *temporary.rglob("*")):
        _fsync(entry)
    try:
        temporary.rename(path)
    except OSError:
        if not path.is_dir():
            raise
        shutil.rmtree(temporary)
    _fsync(path.parent)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock file `path` for the block; `on_wait` is called when another process has it and we wait.

    The lock goes with the process, however that ends. On a file system that has no locks nothing is held.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(stream, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
        yield
