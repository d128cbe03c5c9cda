"""Records on their way to MLflow as one append-only file of JSON lines: written by one process, taken over by one when that has ended.

A record is with the operating system when `append` returns: it survives the death of the process. `sync` makes it survive a power
failure. How far the file is sent stands beside it, replaced atomically, so that nothing is skipped and at most the last request is sent
again (`sender.py` makes that harmless). This file knows lines and offsets; what they mean and where they go it does not.
"""

import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossmesh.files import write_text

_SUFFIX = ".jsonl"
_TRUNCATED_FROM = 4 << 20
"""Bytes of a file whose every record is sent, from which on it is emptied."""


@dataclass(frozen=True)
class JournalEntry:
    """One thing to store with a run."""

    run_id: str
    kind: str
    """`metrics`, `tags`, `text`, `files`, `dataset`, `version` or `status`: what `sender.py` can send."""
    body: Any
    """JSON; its form follows from `kind`."""

    def line(self) -> bytes:
        """The entry as a line of a journal."""
        return json.dumps([self.run_id, self.kind, self.body], separators=(",", ":")).encode() + b"\n"

    @staticmethod
    def of(line: bytes) -> "JournalEntry":
        """The entry that `line` made; raises `ValueError` for a damaged line."""
        run_id, kind, body = json.loads(line)
        return JournalEntry(run_id, kind, body)


class Journal:
    """An open journal file; as long as it is open no other process sends its records."""

    def __init__(self, path: Path, descriptor: int, sent: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._sent = sent
        self._size = os.fstat(descriptor).st_size
        self.waiting = sum(1 for _ in self._lines())
        """Records that are not sent yet."""
        self.sent = 0
        """Records that were sent since it was opened."""

    @staticmethod
    def create(folder: Path) -> "Journal":
        """Start a journal in `folder`. Names sort by the time they were made."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{time.time_ns()}-{uuid.uuid4().hex[:8]}{_SUFFIX}"
        temporary = path.with_name(f".{path.name}")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        _lock(descriptor)  # Before it has its name: nobody takes it for one that was left.
        temporary.rename(path)
        return Journal(path, descriptor, 0)

    @staticmethod
    def take(path: Path) -> "Journal | None":
        """Open a journal whose process has ended; None when a process has it, or it is gone."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        except FileNotFoundError:
            return None
        if not _lock(descriptor) or not _still_there(path, descriptor):
            os.close(descriptor)
            return None
        return Journal(path, descriptor, _offset(path))

    def append(self, entry: JournalEntry) -> None:
        """Add a record at the end."""
        line = entry.line()
        view = memoryview(line)
        while view:
            view = view[os.write(self._descriptor, view) :]
        self._size += len(line)
        self.waiting += 1

    def unsent(self, limit: int) -> tuple[list[JournalEntry], list[int]]:
        """Return up to `limit` records that are not sent, in order, and the offset after each; a damaged line is passed over."""
        entries, ends = [], []
        for line, end in self._lines():
            with suppress(ValueError):  # Half a line after a power failure; nothing more can be made of it.
                entries.append(JournalEntry.of(line))
                ends.append(end)
            if len(entries) == limit:
                break
        return entries, ends

    def store_offset(self, offset: int) -> None:
        """Write down that the records up to `offset` are stored at MLflow. May run beside `append`."""
        self._sent = offset
        write_text(_offset_file(self.path), str(offset))

    def count_sent(self, count: int) -> None:
        """Count `count` records as sent, after `store_offset`; a long file without others is emptied. Must not run beside `append`."""
        self.waiting = max(0, self.waiting - count)
        self.sent += count
        if self._sent == self._size and self._size >= _TRUNCATED_FROM:
            os.ftruncate(self._descriptor, 0)
            self._size = 0
            self.store_offset(0)

    def sync(self) -> None:
        """Let what is appended survive a power failure."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Let go of the file; one without unsent records is removed."""
        if not any(True for _ in self._lines()):
            self.path.unlink(missing_ok=True)
            _offset_file(self.path).unlink(missing_ok=True)
        os.close(self._descriptor)

    def _lines(self) -> Iterator[tuple[bytes, int]]:
        return _complete_lines(self.path, self._sent)


def journals(folder: Path) -> list[Path]:
    """Return the journals in `folder`, oldest first."""
    return sorted(folder.glob(f"[0-9]*{_SUFFIX}"))


def runs_waiting(path: Path) -> set[str]:
    """Return the runs of which the journal at `path`, whoever has it, has records that are not sent."""
    run_ids = set()
    with suppress(FileNotFoundError):
        for line, _ in _complete_lines(path, _offset(path)):
            with suppress(ValueError):
                run_ids.add(JournalEntry.of(line).run_id)
    return run_ids


def _complete_lines(path: Path, offset: int) -> Iterator[tuple[bytes, int]]:
    """The whole lines from `offset` on, each with the offset after it; one that is still being written is not whole."""
    with path.open("rb") as stream:
        stream.seek(offset)
        for line in stream:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield line, offset


def _offset_file(path: Path) -> Path:
    return path.with_suffix(".sent")


def _offset(path: Path) -> int:
    """How far a journal is sent; a file that was emptied since then begins anew."""
    try:
        offset = int(_offset_file(path).read_text(encoding="ascii"))
        return offset if offset <= path.stat().st_size else 0
    except (OSError, ValueError):
        return 0


def _lock(descriptor: int) -> bool:
    """Whether the file is ours now. Without locks on its file system no file is ever taken over."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _still_there(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
