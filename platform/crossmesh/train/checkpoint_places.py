"""Where checkpoints lie: in a folder of this machine, or in an object store that fsspec reaches.

A place holds folders `step-<number>`, each whole or not seen at all. What is in them, and whether it is still what was put there, is
`checkpoint.py`'s.
"""

import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from crossmesh.errors import CrossmeshError, InputError
from crossmesh.files import publish_folder

MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d{8})")


class Place(Protocol):
    """A store of checkpoint folders by step."""

    def steps(self) -> list[int]:
        """Steps that there is a checkpoint of, oldest first."""
        ...

    def put(self, staged: Path, step: int) -> str:
        """Take in the folder `staged`, which is gone afterwards; return the checkpoint's address."""
        ...

    def get(self, step: int, scratch: Path) -> Path:
        """Return a local folder with the checkpoint; `scratch` does not exist and may become it."""
        ...

    def set_aside(self, step: int) -> str:
        """Keep the checkpoint out of the way, so that its step can be put again; return the new address."""
        ...

    def discard(self, step: int) -> None:
        """Remove the checkpoint: out of sight at once, then file by file."""
        ...


class LocalPlace:
    """A folder; checkpoints appear by a rename."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def steps(self) -> list[int]:
        """Steps that there is a checkpoint of, oldest first."""
        if not self._folder.is_dir():
            return []
        return sorted(int(match[1]) for entry in self._folder.iterdir() if (match := _NAME.fullmatch(entry.name)))

    def put(self, staged: Path, step: int) -> str:
        """Fsync and rename `staged`, which lies in this folder."""
        publish_folder(staged, self._path(step))
        return str(self._path(step))

    def get(self, step: int, scratch: Path) -> Path:  # noqa: ARG002 - it is local already
        """The checkpoint's folder itself."""
        return self._path(step)

    def set_aside(self, step: int) -> str:
        """Rename the checkpoint."""
        aside = self._folder / f"damaged-{step:08d}-{uuid.uuid4().hex[:8]}"
        self._path(step).rename(aside)
        return str(aside)

    def discard(self, step: int) -> None:
        """Rename the checkpoint to a hidden name, then delete it."""
        aside = self._folder / f".step-{step:08d}.{uuid.uuid4().hex}"
        with suppress(FileNotFoundError):
            self._path(step).rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:08d}"


class RemotePlace:
    """A folder of an object store (`gs://`, `s3://`, `file://`, ...).

    There is no rename there: the manifest goes up last and is deleted first, and a folder without one is not a checkpoint.
    Credentials are found where gcsfs and s3fs look for them.
    """

    def __init__(self, url: str) -> None:
        import fsspec

        self._url = url.rstrip("/")
        self._files: Any
        try:
            self._files, root = fsspec.core.url_to_fs(self._url)
        except (ValueError, ImportError) as error:  # No such scheme, or the package for it is not there.
            raise InputError(
                f"checkpoint.target: {url} is not possible: {error}. Allowed: gs://bucket/folder, s3://bucket/folder, file:///folder, or "
                "another URL that fsspec knows in the workers' environment."
            ) from error
        self._root = str(root).rstrip("/")

    def steps(self) -> list[int]:
        """Steps that there is a checkpoint of, oldest first."""
        with self._reached():
            self._files.invalidate_cache()
            if not self._files.exists(self._root):
                return []
            names = [str(entry).rstrip("/").rpartition("/")[2] for entry in self._files.ls(self._root, detail=False)]
            found = [int(match[1]) for name in names if (match := _NAME.fullmatch(name))]
            return sorted(step for step in found if self._files.exists(f"{self._path(step)}/{MANIFEST}"))

    def put(self, staged: Path, step: int) -> str:
        """Upload the files of `staged`, its manifest last."""
        folder = self._path(step)
        with self._reached():
            if self._files.exists(folder):  # Left of an upload that did not end.
                self._files.rm(folder, recursive=True)
            files = sorted((file for file in staged.rglob("*") if file.is_file()), key=lambda file: file.name == MANIFEST)
            for file in files:
                remote = f"{folder}/{file.relative_to(staged).as_posix()}"
                self._files.makedirs(remote.rpartition("/")[0], exist_ok=True)
                self._files.put_file(str(file), remote)
        shutil.rmtree(staged)
        return f"{self._url}/step-{step:08d}"

    def get(self, step: int, scratch: Path) -> Path:
        """Download the checkpoint into `scratch`."""
        folder = self._path(step)
        scratch.mkdir(parents=True)
        with self._reached():
            for remote in self._files.find(folder):
                local = scratch / str(remote).removeprefix(folder).lstrip("/")
                local.parent.mkdir(parents=True, exist_ok=True)
                self._files.get_file(remote, str(local))
        return scratch

    def set_aside(self, step: int) -> str:
        """Move the checkpoint."""
        name = f"damaged-{step:08d}-{uuid.uuid4().hex[:8]}"
        with self._reached():
            self._files.mv(self._path(step), f"{self._root}/{name}", recursive=True)
        return f"{self._url}/{name}"

    def discard(self, step: int) -> None:
        """Delete the manifest, then the rest."""
        with self._reached():
            self._files.rm_file(f"{self._path(step)}/{MANIFEST}")
            self._files.rm(self._path(step), recursive=True)

    def _path(self, step: int) -> str:
        return f"{self._root}/step-{step:08d}"

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Turn what the store raises into one message; each store has exceptions of its own."""
        try:
            yield
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise CrossmeshError(
                f"The checkpoint folder {self._url} could not be reached ({type(error).__name__}: {reason}). Check checkpoint.target "
                "and the workers' credentials; checkpoints that are there are kept, and the same command continues from the newest."
            ) from error
