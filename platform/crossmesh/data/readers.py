"""Records of a data source, one after another, each with its place for error messages: jsonl, parquet, datasets on the Hugging Face Hub.

It knows files and not what is in their columns.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from crossmesh.data.hub import hub_files
from crossmesh.errors import InputError, nearest, reading

Record = tuple[str, Mapping[str, Any]]
"""Where a row stands (`rows.jsonl, line 7`) and its columns."""

_SUFFIXES = (".jsonl", ".parquet")


def read_records(source: str, split: str, columns: Sequence[str], cache: Path, also: Sequence[str] = ()) -> Iterator[Record]:
    """Yield the rows of `source`, each with `columns`, and with those of `also` that it has.

    `source` is a `.jsonl` or `.parquet` file, or `hf://datasets/owner/name[@revision][/file or folder]`, of which the files of `split`
    are read. Raises `InputError` for a source that is not there, a column it does not have, and a bad line, named by its number.
    """
    if source.startswith("hf://"):
        files = hub_files(source, split, cache)
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
