"""Records of a data source, one after another, each with its place for error messages: jsonl, parquet, datasets on the Hugging Face Hub.

It knows files and not what is in their columns.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from crossmesh.errors import InputError, nearest, reading

Record = tuple[str, Mapping[str, Any]]
"""Where a row stands (`rows.jsonl, line 7`) and its columns."""

_SUFFIXES = (".jsonl", ".parquet")
_HUB = re.compile(r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?(?:/(?P<path>.+))?")


def read_records(source: str, split: str, columns: Sequence[str], cache: Path, also: Sequence[str] = ()) -> Iterator[Record]:
    """Yield the rows of `source`, each with `columns`, and with those of `also` that it has.

    `source` is a `.jsonl` or `.parquet` file, or `hf://datasets/owner/name[@revision][/file or folder]`, of which the files of `split`
    are read. Raises `InputError` for a source that is not there, a column it does not have, and a bad line, named by its number.
    """
    if source.startswith("hf://"):
        files = _hub_files(source, split, cache)
    else:
        files = [Path(source)]
        if not os.path.isfile(source):  # noqa: PTH113  # `Path.is_file` raises for a name that is too long.
            raise InputError(
                f"data.source={source!r} is no file. Allowed: rtl, a .jsonl or .parquet file, or hf://datasets/owner/name. "
                "A relative path starts from the folder the job was started in."
            )
    for file in files:
        reader = {".jsonl": _read_jsonl, ".parquet": _read_parquet}.get(file.suffix)
        if reader is None:
            raise InputError(
                f"data.source={source!r} is of an unknown kind: {file.name}. Allowed: a file ending in {' or '.join(_SUFFIXES)}."
            )
        with reading(file, f"a whole {file.suffix} file that this user may read"):
            yield from reader(file, columns, also)


def _missing(place: str, column: str, found: Sequence[str]) -> InputError:
    guess = nearest(column, found)
    hint = f" Did you mean {guess!r}?" if guess else ""
    return InputError(
        f"{place} has no column {column!r}. It has: {', '.join(found) or 'none'}.{hint} "
        "Set data.messages_column, or data.prompt_column and data.response_column."
    )


def _read_jsonl(file: Path, columns: Sequence[str], also: Sequence[str]) -> Iterator[Record]:  # noqa: ARG001
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            place = f"{file}, line {number}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{place} is not JSON: {error}. Needed: one JSON object a line, in UTF-8.") from error
            if not isinstance(record, dict):
                raise InputError(f"{place} is a JSON {type(record).__name__}. Needed: one JSON object a line.")
            for column in columns:
                if column not in record:
                    raise _missing(place, column, list(record))
            yield place, record


def _read_parquet(file: Path, columns: Sequence[str], also: Sequence[str]) -> Iterator[Record]:
    from pyarrow import parquet

    with parquet.ParquetFile(file) as table:
        for column in columns:
            if column not in table.schema_arrow.names:
                raise _missing(str(file), column, table.schema_arrow.names)
        number = 0
        wanted = [*columns, *(column for column in also if column in table.schema_arrow.names and column not in columns)]
        for batch in table.iter_batches(batch_size=1024, columns=wanted):
            for record in batch.to_pylist():
                number += 1
                yield f"{file}, row {number}", record


def _hub_files(source: str, split: str, cache: Path) -> list[Path]:
    """Download (or find in the cache) the files of one split of a dataset on the Hub."""
    match = _HUB.fullmatch(source)
    if match is None:
        raise InputError(f"data.source={source!r} is no dataset address. Allowed: hf://datasets/owner/name[@revision][/file or folder].")
    path = match["path"]
    if path is not None:
        patterns = [[path, f"{path}/*"]]
    else:
        # The files that name the split first: a dataset may be many times larger than one split of it.
        patterns = [[f"*{split}*{suffix}" for suffix in _SUFFIXES], [f"*{suffix}" for suffix in _SUFFIXES]]
    for allowed in patterns:
        folder = _snapshot(source, match["repo"], match["revision"], allowed, cache)
        names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.suffix in _SUFFIXES)
        chosen = choose_files(source, names, split, path)
        if chosen:
            return [folder / name for name in chosen]
    wanted = f"at {path}" if path else f"of split {split!r}"
    raise InputError(f"{source} has no {' or '.join(_SUFFIXES)} file {wanted}. Found: {', '.join(names) or 'none'}.")


def choose_files(source: str, names: Sequence[str], split: str, path: str | None) -> list[str]:
    """Return the data files of `split` among `names` (paths in a dataset), in order.

    A file belongs to the split that its path names as a word (`data/train-00000-of-00002.parquet`, `train.jsonl`); where no path names
    any split, all files are the split `train`. With `path`, only that file or the files under it. Raises `InputError` when the
    choice spans several folders or kinds: those are different subsets, and the address has to say which is meant.
    """
    if path is not None:
        names = [name for name in names if name == path or name.startswith(f"{path.rstrip('/')}/")]
        if names == [path]:
            return list(names)
    chosen = [name for name in names if split in _words(name)]
    if not chosen and split == "train" and not any(_words(name) & {"test", "validation", "valid", "val", "dev", "eval"} for name in names):
        chosen = list(names)
    groups = {(str(PurePosixPath(name).parent), PurePosixPath(name).suffix, _stem(name)) for name in chosen}
    if len(groups) > 1:
        raise InputError(
            f"{source} has several subsets of split {split!r}: {', '.join(chosen[:8])}. Name the one meant: {source}/{chosen[0]}."
        )
    return chosen


def _words(name: str) -> set[str]:
    return set(re.split(r"[/_.\-]", name))


def _stem(name: str) -> str:
    """Return a file's name without shard numbers: `train-00000-of-00002.parquet` and `train-00001-of-00002.parquet` are one file."""
    return re.sub(r"[-_.]?\d+(-of-\d+)?(?=\.[a-z]+$)", "", PurePosixPath(name).name)


def _snapshot(source: str, repo: str, revision: str | None, patterns: list[str], cache: Path) -> Path:
    """Return the folder of a dataset snapshot with the files that match `patterns`."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    # HF_HOME and HF_HUB_CACHE are the user's word on where the Hub's files live; without one they go under storage.root.
    chosen_by_user = os.environ.get("HF_HOME") or os.environ.get("HF_HUB_CACHE")
    try:
        return Path(
            snapshot_download(
                repo,
                repo_type="dataset",
                revision=revision,
                allow_patterns=patterns,
                cache_dir=None if chosen_by_user else cache / "huggingface",
            )
        )
    except GatedRepoError as error:
        raise InputError(f"{source} is gated: accept its terms on its page and set HF_TOKEN to a token of that account.") from error
    except RepositoryNotFoundError as error:
        raise InputError(f"{source} does not exist, or is private: check the name, or set HF_TOKEN to a token that may read it.") from error
    except HFValidationError as error:
        raise InputError(
            f"data.source={source!r} is no dataset address: {error}. Allowed: hf://datasets/owner/name[@revision][/path]."
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise InputError(
            f"{source} is not in the local cache and could not be downloaded: {error}. Go online (unset HF_HUB_OFFLINE), or point HF_HOME "
            "at a cache that holds it."
        ) from error
