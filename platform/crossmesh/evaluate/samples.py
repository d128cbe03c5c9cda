"""Answers kept as they come: one JSON line each, so that an interrupted evaluation goes on where it was.

The first line says what the answers are answers to; a file of other answers is refused, never mixed in. A line torn by a crash is
dropped and asked again. Beside it `*.raw.jsonl` holds every body that came, before anything is made of it.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from crossmesh.errors import InputError
from crossmesh.files import parse_json

_SYNC_EVERY = 32


@dataclass(frozen=True)
class Sample:
    """One answer of a model."""

    problem: str
    index: int
    """Which of the problem's samples, from 0."""
    seed: int
    text: str
    finish_reason: str
    """As the endpoint said: `stop`, `length`, ...; empty when it did not."""
    prompt_tokens: int
    completion_tokens: int
    error: str = ""
    """Kind of refusal when the endpoint would not answer this prompt, or sent no answer; such samples are not stored."""
    note: str = ""
    """What of the text could not be kept as it came."""
    changes: tuple[str, ...] = ()
    """Parameters that were sent otherwise than asked for (`answers.Parameters`)."""

    def __post_init__(self) -> None:
        """Take a list from JSON."""
        object.__setattr__(self, "changes", tuple(self.changes))


def _end_line(stream: BinaryIO) -> None:
    """Let what is appended begin on a line of its own where the last one is torn."""
    if stream.seek(0, os.SEEK_END):
        stream.seek(-1, os.SEEK_END)
        if stream.read(1) != b"\n":
            stream.write(b"\n")


class SampleFile:
    """The samples of one evaluation in a `.jsonl` file; a context manager that leaves every sample on disk."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        """Open `path` for `identity`, which must be equal to that of samples already there.

        Raises:
            InputError: the file has samples of something else, or is damaged before its last line.
        """
        self._path = path
        self.samples: dict[tuple[str, int], Sample] = {}
        """By problem id and index."""
        self._opened: dict[tuple[str, int], Sample] = {}
        self._opened_bytes = 0
        self._unsynced = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream: BinaryIO = path.open("a+b")
        self._raw: BinaryIO = path.with_suffix(".raw.jsonl").open("a+b")
        _end_line(self._raw)
        self._opened_raw = self._raw.tell()
        try:
            self._load(json.loads(json.dumps(dict(identity))))
        except BaseException:
            self._stream.close()
            self._raw.close()
            raise

    def __enter__(self) -> Self:
        """Return the file itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Sync and close, whatever happened."""
        self._sync()
        self._stream.close()
        self._raw.close()

    def keep(self, problem: str, index: int, body: bytes) -> None:
        """Keep what came for a sample as it is, with the kernel when this returns."""
        line = {"problem": problem, "index": index, "body": body.decode(errors="backslashreplace")}
        self._raw.write(json.dumps(line).encode() + b"\n")
        self._raw.flush()

    def append(self, sample: Sample) -> None:
        """Keep a sample. At most the last few can be lost to a power failure, none to a killed process."""
        self.samples[(sample.problem, sample.index)] = sample
        self._write(asdict(sample))
        self._unsynced += 1
        if self._unsynced >= _SYNC_EVERY:
            self._sync()

    def forget_new(self) -> None:
        """Drop every sample that came since the file was opened."""
        self._stream.flush()
        self._stream.truncate(self._opened_bytes)
        self._raw.truncate(self._opened_raw)
        self.samples = dict(self._opened)
        self._sync()

    def _load(self, identity: Mapping[str, Any]) -> None:
        """Read what is there, cut a torn last line off, and write the first line of a new file."""
        self._stream.seek(0)
        content = self._stream.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            self._stream.truncate(whole)
        lines = content[:whole].split(b"\n")[:-1]
        if not lines:
            self._write({"identity": identity})
            self._sync()
            self._opened_bytes = self._stream.tell()
            return
        try:
            records = [parse_json(line) for line in lines]
            found = records[0]["identity"]
            samples = [Sample(**record) for record in records[1:]]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self._path} is damaged ({error}). Move it away to sample again.") from error
        if found != identity:
            keys = sorted(key for key in {*found, *identity} if found.get(key) != identity.get(key))
            raise InputError(
                f"{self._path} holds answers of another evaluation: {', '.join(keys)} differ. "
                "Use another folder, or remove the file to sample again."
            )
        self.samples = {(sample.problem, sample.index): sample for sample in samples}
        self._opened, self._opened_bytes = dict(self.samples), whole

    def _write(self, record: Mapping[str, Any]) -> None:
        """Write one line through to the kernel."""
        self._stream.write(json.dumps(record, ensure_ascii=False).encode(errors="backslashreplace") + b"\n")
        self._stream.flush()

    def _sync(self) -> None:
        """Bring what was written to the disk."""
        for stream in (self._stream, self._raw):
            os.fsync(stream.fileno())
        self._unsynced = 0
