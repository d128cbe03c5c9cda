"""Recorded traces of requests: which columns a file has, in which unit its times are, which prompts begin alike. Reads; decides no load.

Columns are known by their names, in any order; a name or a unit that is not known is refused, never guessed.
"""

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from crossmesh.errors import reading
from crossmesh.plan.serving.batching import LoadRequest

FORM = (
    "a CSV with a heading, or JSON lines, with the columns arrival_s (or arrival_ms; or arrival, with dates), prompt_tokens and "
    "output_tokens in any order; or the files of Azure (TIMESTAMP, ContextTokens, GeneratedTokens), BurstGPT (Timestamp, Request tokens, "
    "Response tokens) or Mooncake (timestamp, input_length, output_length, hash_ids) as they are"
)

_UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "millis", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "usec", "micros", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nsec", "nanos", "nanosecond", "nanoseconds"), 1e-9),
}
_TIMES = frozenset(("arrival", "arrivaltime", "arrivaltimestamp", "arrivedat", "time", "timestamp", "ts", "starttime", "starttimestamp"))
_PROMPTS = frozenset(
    ("prompttokens", "contexttokens", "requesttokens", "inputtokens", "inputlength", "promptlength", "promptlen", "inputlen")
)
_OUTPUTS = frozenset(
    ("outputtokens", "generatedtokens", "responsetokens", "completiontokens", "outputlength", "outputlen", "answertokens", "responselength")
)
_HASHES = frozenset(("hashids",))
_IGNORED = frozenset(("model", "totaltokens", "logtype", "sessionid", "elapsedtime", "requestid", "id", ""))
"""What a trace may say besides, and no load needs. The nameless one is the index that pandas writes."""
_BURST, _MOONCAKE = ("timestamp", "requesttokens", "responsetokens"), ("timestamp", "inputlength", "outputlength")
"""Columns by which the two are known whose times are numbers without a unit: of BurstGPT seconds, of Mooncake milliseconds."""
_TIME, _PROMPT, _OUTPUT = "the arrival time", "the tokens of the prompt", "the tokens of the answer"
_HASH, _NOTHING = "the hashes of its blocks", "nothing"
_BLOCKS = (512, 256, 128, 64, 32, 16, 1024, 2048)
"""Tokens of a hashed block; Mooncake's first."""


@dataclass(frozen=True)
class Trace:
    """The requests of a file in the order of their arrival, the first one at 0."""

    requests: tuple[LoadRequest, ...]
    notes: tuple[str, ...]
    """What was left out."""
    block: int = 0
    """Tokens of a hashed block of a prompt; 0: the trace has no hashes."""


@dataclass(frozen=True)
class _Columns:
    time: str
    prompt: str
    output: str
    seconds: float
    """Seconds of one unit of a time that is a number; 0: only dates say when."""
    whole: bool
    """Whether such numbers are whole, so that others are in another unit."""
    failures: bool
    """Whether an answer without a token is a request that failed."""


def read_trace(path: Path) -> Trace:
    """The requests of a trace. Dates without a zone are UTC. Raises `InputError` for a file in another form than `FORM`."""
    with reading(path, FORM):
        text = path.read_text(encoding="utf-8-sig")
        rows = _json_rows(text) if text.lstrip().startswith("{") else _csv_rows(text)
        first = next(rows, None)
        if first is None:
            raise ValueError("there is no request in it")
        columns = _columns(list(first[1]))
        requests = [_request(where, row, columns) for where, row in (first, *rows)]
        kept = sorted((one for one in requests if one is not None), key=lambda request: request.arrival_s)
        if not kept:
            raise ValueError("there is no request in it that was answered")
        failed = len(requests) - len(kept)
        notes = (
            (f"{failed:,} of the trace's {len(requests):,} requests failed (no token in the answer) and are left out.",) if failed else ()
        )
        start = kept[0].arrival_s
        return Trace(tuple(replace(one, arrival_s=one.arrival_s - start) for one in kept), notes, _block_of(kept))


def _csv_rows(text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    heading = text.partition("\n")[0]
    delimiter = max(",;\t", key=heading.count)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    names = next((line for line in lines if line), [])
    if names and all(_is_value(cell) for cell in names):
        raise ValueError(f"its first line has values and no names of columns: {delimiter.join(names)}")
    _columns(names)
    for line in lines:
        if line:
            if len(line) != len(names):
                raise ValueError(f"line {lines.line_num} has {len(line)} values for {len(names)} columns")
            yield f"line {lines.line_num}", dict(zip(names, line, strict=True))


def _json_rows(text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(text.split("\n"), start=1):  # Never `splitlines`: a text may hold other ends of lines.
        if line.strip():
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is not a JSON object")
            yield f"line {number}", row


def _is_value(text: str) -> bool:
    return _number(text) is not None or _date(text) is not None


@cache
def _meaning(name: str) -> tuple[str, float]:
    """What the column `name` says, and the seconds of its unit where it names one; an empty text where the name is not known."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name.strip())
    words = [word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if word]
    plain, base = "".join(words), "".join(words[:-1])
    if base in _TIMES and words[-1] in _UNITS:
        return _TIME, _UNITS[words[-1]]
    kinds = {_TIME: _TIMES, _PROMPT: _PROMPTS, _OUTPUT: _OUTPUTS, _HASH: _HASHES, _NOTHING: _IGNORED}
    return next((kind for kind, names in kinds.items() if plain in names), ""), 0.0


def _columns(names: Sequence[str]) -> _Columns:
    """Tell columns by their names. Raises `ValueError` for one that is not known, is there twice, or is missing."""
    by_kind: dict[str, str] = {}
    unit = 0.0
    for name in names:
        kind, of = _meaning(name)
        if not kind:
            raise ValueError(f"the column {name!r} is not known")
        if kind in by_kind:
            raise ValueError(f"both {by_kind[kind]!r} and {name!r} say {kind}")
        if kind != _NOTHING:
            by_kind[kind] = name
        unit = unit or of
    if missing := [kind for kind in (_TIME, _PROMPT, _OUTPUT) if kind not in by_kind]:
        raise ValueError(f"no column says {' or '.join(missing)}; it has {', '.join(names)}")
    form = tuple(re.sub(r"[^a-z]", "", by_kind[kind].lower()) for kind in (_TIME, _PROMPT, _OUTPUT))
    burst, mooncake = form == _BURST, form == _MOONCAKE
    by_form = _UNITS["s"] if burst else _UNITS["ms"] if mooncake else 0.0
    return _Columns(by_kind[_TIME], by_kind[_PROMPT], by_kind[_OUTPUT], unit or by_form, mooncake, burst)


def _request(where: str, row: Mapping[str, Any], columns: _Columns) -> LoadRequest | None:
    """The request of a row; None for one that failed."""
    for name in (columns.time, columns.prompt, columns.output):
        if row.get(name) is None:
            raise ValueError(f"{where} has no {name!r}")
    if unknown := [name for name in row if not _meaning(name)[0]]:
        raise ValueError(f"{where} has the column {unknown[0]!r}, which is not known")
    prompt, output = (_tokens(where, row[name]) for name in (columns.prompt, columns.output))
    if columns.failures and output == 0:
        return None
    if prompt < 1 or output < 1:
        raise ValueError(f"{where} has a prompt of {prompt} and an answer of {output} tokens")
    hashes = next((value for name, value in row.items() if _meaning(name)[0] == _HASH), None)
    return LoadRequest(_arrival(where, str(row[columns.time]), columns), prompt, output, hashes=_hashes(where, hashes))


def _tokens(where: str, value: object) -> int:
    number = _number(str(value))
    if number is None or number != int(number):
        raise ValueError(f"{where} has {value!r} where a number of tokens is needed")
    return int(number)


def _hashes(where: str, value: object) -> tuple[int, ...]:
    hashes = json.loads(value) if isinstance(value, str) and value.strip() else value or []
    if not (isinstance(hashes, list) and all(isinstance(one, int) for one in hashes)):
        raise ValueError(f"{where} has hash_ids that are no list of whole numbers")
    return tuple(hashes)


def _arrival(where: str, text: str, columns: _Columns) -> float:
    """Seconds; of a date since 1970 in UTC. A number without a unit is refused."""
    number = _number(text)
    if number is None:
        moment = _date(text)
        if moment is None:
            raise ValueError(f"{where} has the time {text}, which is neither a number nor a date as ISO 8601 has them")
        return moment
    if not columns.seconds:
        raise ValueError(f"{where} has the time {text} without a unit: name the column arrival_s or arrival_ms instead of {columns.time!r}")
    if columns.whole and number % 1:
        raise ValueError(f"{where} has the time {text}, and Mooncake's are whole milliseconds: name the column arrival_s or arrival_ms")
    return number * columns.seconds


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _date(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _block_of(requests: Sequence[LoadRequest]) -> int:
    """Tokens of a block, so that every prompt has as many blocks as hashes. Raises `ValueError` where no size fits."""
    hashed = [one for one in requests if one.hashes]
    if not hashed:
        return 0
    for block in _BLOCKS:
        if all(-(-one.prompt // block) == len(one.hashes) for one in hashed):
            return block
    one = next(one for one in hashed if -(-one.prompt // _BLOCKS[0]) != len(one.hashes))
    raise ValueError(
        f"hash_ids do not fit the prompts in blocks of {_BLOCKS[0]} tokens (Mooncake's) nor of another usual size: "
        f"a prompt of {one.prompt} tokens has {len(one.hashes)} of them"
    )


def shared_tokens(requests: Sequence[LoadRequest], block: int) -> list[int]:
    """Tokens at the start of each prompt that the prompt of an earlier request begins with too, in blocks of `block`."""
    branches: dict[tuple[int, int, int], int] = {}
    shared = []
    for one in requests:
        node, common, left = 0, 0, one.prompt
        for hashed in one.hashes:
            size = min(block, left)
            step = (node, hashed, size)
            if step in branches and common == one.prompt - left:
                common += size
            node = branches.setdefault(step, len(branches) + 1)
            left -= size
        shared.append(common)
    return shared
