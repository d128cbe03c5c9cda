"""Rows of files, one after another, each with its place for error messages: files of the usual kinds, folders, the Hub.

It knows files and not what is in their columns (`columns.py`).
"""

import bz2
import csv
import glob
import gzip
import io
import json
import lzma
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from crossmesh.config.training import DataSpec
from crossmesh.data.columns import conversation_of
from crossmesh.data.conversation import CONTEXT_KEYS, LEARNING_KEYS, Conversation
from crossmesh.data.forms import Form, check_columns, find_form
from crossmesh.data.hub import hub_files
from crossmesh.data.layouts import COMPRESSIONS, KINDS, choose_files, is_data, kind_of
from crossmesh.errors import InputError, reading

Record = tuple[str, Mapping[str, Any], Form]
"""Where a row stands (`rows.jsonl, line 7`), its columns and how they are read."""
Find = Callable[[Sequence[str], str], Form]
"""From names of columns and their place to how they are read."""

_ALLOWED = f"a file ending in {', '.join(KINDS)} (also with {', '.join(COMPRESSIONS)}), a folder or a pattern of such files"
_CONVERT = {
    ".xlsx": "python -c \"import pandas; pandas.read_excel('{0}').to_json('rows.jsonl', orient='records', lines=True)\"",
    ".xls": "python -c \"import pandas; pandas.read_excel('{0}').to_json('rows.jsonl', orient='records', lines=True)\"",
    ".yaml": "python -c \"import json, yaml; json.dump(yaml.safe_load(open('{0}')), open('rows.json', 'w'))\"",
    ".yml": "python -c \"import json, yaml; json.dump(yaml.safe_load(open('{0}')), open('rows.json', 'w'))\"",
    ".zip": "python -m zipfile -e '{0}' rows",
    ".tar": "python -m tarfile -e '{0}' rows",
    ".tgz": "python -m tarfile -e '{0}' rows",
}
"""One line for each kind that is not read."""


def read_files(data: DataSpec, cache: Path) -> Iterator[Conversation]:  # noqa: ARG001
    """Yield the rows of a file, a folder or a pattern of files; of folders, those of `data.split`. `file://` before it says the same.

    Raises `InputError` for a source that does not exist, a column it does not have, and a bad line, named by its number.
    """
    yield from _conversations(data, _local_files(data.source.removeprefix("file://"), data.split))


def read_hub(data: DataSpec, cache: Path) -> Iterator[Conversation]:
    """Yield the rows of `data.split` of `hf://datasets/owner/name[@revision][/path]`. Raises `InputError` as `read_files` does."""
    yield from _conversations(data, hub_files(data.source, data.split, cache))


def _conversations(data: DataSpec, files: Sequence[Path]) -> Iterator[Conversation]:
    """Yield the rows of `files`, each with the columns of its file's form, which is found once a file."""

    def find(names: Sequence[str], place: str) -> Form:
        return find_form(names, data, place)

    for file in files:
        kind = kind_of(file.name)
        if not kind:
            raise InputError(f"data.source={data.source!r} is of an unknown kind: {file.name}. {_advice(file)}")
        with reading(file, f"a whole {kind} file that this user may read"):
            for place, record, form in _READERS[kind](file, find, (*CONTEXT_KEYS, *LEARNING_KEYS)):
                yield conversation_of(place, record, form)


def _advice(file: Path) -> str:
    suffix = ".tar" if file.name.endswith((".tar.gz", ".tar.bz2", ".tar.xz")) else file.suffix.lower()
    if suffix in _CONVERT:
        made = {".zip": "rows", ".tar": "rows", ".tgz": "rows", ".yaml": "rows.json", ".yml": "rows.json"}.get(suffix, "rows.jsonl")
        return f"Convert it: {_CONVERT[suffix].format(file)}; then data.source={made}."
    return f"Allowed: {_ALLOWED}."


def _local_files(source: str, split: str) -> list[Path]:
    """Return the data files that a path, a folder or a pattern stands for."""
    if os.path.isfile(source):  # noqa: PTH113  # `Path.is_file` raises for a name that is too long.
        return [Path(source)]
    if os.path.isdir(source):  # noqa: PTH112
        folder = Path(source)
        names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
        card = folder / "README.md"
        text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
        if chosen := choose_files(source.rstrip("/"), names, split, card=text, together=True):
            return [folder / name for name in chosen]
        raise InputError(f"data.source={source!r} is a folder without data files of split {split!r}. Allowed: {_ALLOWED}.")
    found = sorted(name for name in glob.glob(source, recursive=True) if os.path.isfile(name) and is_data(Path(name).name))  # noqa: PTH113, PTH207
    if found:
        return [Path(name) for name in found]
    raise InputError(
        f"data.source={source!r} does not exist. Allowed: rtl, {_ALLOWED}, hf://datasets/owner/name, "
        "or NAME:// of a dataset reader that an installed package has. "
        "A relative path starts from the folder the job was started in."
    )


@contextmanager
def _opened(file: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressed as its name says."""
    with _OPENERS.get(file.suffix.lower(), _plain)(file) as stream:
        yield stream


def _plain(file: Path) -> IO[bytes]:
    return file.open("rb")


def _zstd(file: Path) -> IO[bytes]:
    import pyarrow as pa

    return io.BufferedReader(pa.input_stream(str(file), compression="zstd"))


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{place} is a JSON {type(value).__name__}. Needed: one JSON object for each row.")
    return value


def _formed(rows: Iterator[tuple[str, dict[str, Any]]], find: Find) -> Iterator[Record]:
    """Find the form by the first row and hold every other against it."""
    form: Form | None = None
    for place, record in rows:
        form = form or find(list(record), place)
        check_columns(record, form, place)
        yield place, record, form


def _read_jsonl(file: Path, find: Find, also: Sequence[str]) -> Iterator[Record]:  # noqa: ARG001
    with _opened(file) as stream:
        yield from _formed(_lines(file, stream), find)


def _lines(file: Path, stream: IO[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        place = f"{file}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place} is not JSON: {error}. Needed: one JSON object a line, in UTF-8.") from error
        yield place, _object(record, place)


def _read_json(file: Path, find: Find, also: Sequence[str]) -> Iterator[Record]:  # noqa: ARG001
    """Read a list of rows, an object with one such list, or lines of JSON that only are called `.json`."""
    with _opened(file) as stream:
        content = stream.read()
    yield from _formed(_items(file, content), find)


def _items(file: Path, content: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        text = content.decode("utf-8-sig")
        start = len(text) - len(text.lstrip())
        if text[start : start + 1] == "[":
            yield from _list_items(file, text, start + 1)
            return
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
            yield from _lines(file, io.BytesIO(content))
            return
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise InputError(f"{file}{line} is not JSON: {error}. Needed: a list of objects, or one object a line, in UTF-8.") from error
    lists = [(key, value) for key, value in _object(whole, str(file)).items() if isinstance(value, list)]
    tables = [(key, value) for key, value in lists if value and all(isinstance(one, dict) for one in value)]
    if len(lists) == len(whole) > 1 and len({len(value) for _, value in lists}) == 1:
        raise InputError(
            f"{file} holds columns and not rows. Convert it: python -c \"import pandas; pandas.DataFrame(__import__('json').load(open("
            f"'{file}'))).to_json('rows.jsonl', orient='records', lines=True)\"; then data.source=rows.jsonl."
        )
    if len(tables) != 1 or {"role", "from"} & set(tables[0][1][0]):
        yield f"{file}, line 1", whole  # A single row.
        return
    key, rows = tables[0]
    for number, row in enumerate(rows, 1):
        yield f"{file}, row {number} of {key!r}", row


def _list_items(file: Path, text: str, position: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the items of a JSON list, each with the line on which it begins."""
    decoder = json.JSONDecoder()
    line, counted = 1, 0
    while True:
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1
        line += text.count("\n", counted, position)
        counted = position
        place = f"{file}, line {line}"
        if text[position : position + 1] == "]":
            if rest := text[position + 1 :].strip():
                raise InputError(f"{place} goes on behind the end of its list: {rest[:40]!r}. Needed: one list.")
            return
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place}: the row that begins here is not JSON: {error}. Needed: a list of objects.") from error
        yield place, _object(value, place)


def _read_table(file: Path, find: Find, also: Sequence[str]) -> Iterator[Record]:  # noqa: ARG001
    with _opened(file) as stream:
        yield from _formed(_table_rows(file, stream), find)


def _table_rows(file: Path, stream: IO[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a table with a heading, separated by commas, tabs or, where its heading has no comma, semicolons."""
    csv.field_size_limit(2**31 - 1)  # The module's own limit cuts at 128 KiB.
    with io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
        first = text.readline()
        separator = "\t" if kind_of(file.name) == ".tsv" else next((one for one in ",;\t" if one in first), ",")
        heading = next(csv.reader([first], delimiter=separator), [])
        if not heading or "" in heading or len(set(heading)) < len(heading):
            raise InputError(f"{file}, line 1 is not a heading: {first.strip()[:80]!r}. Needed: a name for each column, each once.")
        rows = csv.reader(text, delimiter=separator, strict=True)
        line = 2
        try:
            for row in rows:
                place, line = f"{file}, line {line}", rows.line_num + 2
                if not row:
                    continue
                if len(row) != len(heading):
                    raise InputError(
                        f"{place} has {len(row)} cells, and the heading has {len(heading)}: {', '.join(heading)}. Quote the cells."
                    )
                yield place, dict(zip(heading, row, strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(
                f"{file}, line {line} cannot be read: {error}. Needed: cells in quotes where they hold {separator!r}, in UTF-8."
            ) from error


def _read_parquet(file: Path, find: Find, also: Sequence[str]) -> Iterator[Record]:
    from pyarrow import parquet

    if file.suffix.lower() in COMPRESSIONS:
        raise InputError(f"{file} is compressed twice. Decompress it: parquet is compressed inside.")
    with parquet.ParquetFile(file) as table:
        names = table.schema_arrow.names
        form, wanted = _wanted(find(names, str(file)), names, also)
        form = replace(form, unread=tuple(name for name in form.unread if not _holds_nothing(table, name)))
        yield from _batches(file, table.iter_batches(batch_size=1024, columns=wanted), form)


def _holds_nothing(table: Any, name: str) -> bool:
    """Whether a column of a parquet file is null in every row: by its type, or as the file's statistics say."""
    if str(table.schema_arrow.field(name).type) == "null":
        return True
    for group in (table.metadata.row_group(index) for index in range(table.metadata.num_row_groups)):
        parts = (group.column(index) for index in range(group.num_columns))
        found = [one.statistics for one in parts if one.path_in_schema.partition(".")[0] == name]
        if not found or any(one is None or one.null_count != group.num_rows for one in found):
            return False
    return True


def _read_arrow(file: Path, find: Find, also: Sequence[str]) -> Iterator[Record]:
    """Read what `save_to_disk` of the `datasets` library writes."""
    import pyarrow as pa

    with _opened(file) as stream, pa.ipc.open_stream(stream) as table:
        form, wanted = _wanted(find(table.schema.names, str(file)), table.schema.names, also)
        yield from _batches(file, (batch.select(wanted) for batch in table), form)


def _wanted(form: Form, names: Sequence[str], also: Sequence[str]) -> tuple[Form, list[str]]:
    """The columns to read, and the form with those that are left."""
    wanted = list(dict.fromkeys([*form.columns, *(one for one in (*form.optional, *also) if one in names)]))
    return replace(form, unread=tuple(one for one in names if one not in wanted)), wanted


def _batches(file: Path, batches: Any, form: Form) -> Iterator[Record]:
    number = 0
    for batch in batches:
        for record in batch.to_pylist():
            number += 1
            yield f"{file}, row {number}", record, form


_OPENERS: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _zstd}
_READERS: dict[str, Callable[[Path, Find, Sequence[str]], Iterator[Record]]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_table,
    ".tsv": _read_table,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
}
