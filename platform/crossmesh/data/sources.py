"""From `DataSpec` to training rows: chat messages of any source, cleaned as the spec says, tokenized, filtered and digested.

Rows that are too long or empty are dropped and counted, never cut. Reading files is `readers.py`, templates and masks are `chat.py`.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from crossmesh.data.batches import Row
from crossmesh.data.chat import ChatTokenizer, Message, Messages, message
from crossmesh.data.lengths import LengthStatistics, length_statistics
from crossmesh.data.readers import read_records
from crossmesh.data.rtl import build_rtl
from crossmesh.errors import InputError
from crossmesh.spec.training import DataSpec

_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[^\n]*\n.*?^[ \t]*\1[ \t]*$", re.DOTALL | re.MULTILINE)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_THINK = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Dataset:
    """Tokenized rows of one source, in the order of the source."""

    rows: tuple[Row, ...]
    dropped_long: int
    """Rows over `data.max_length`."""
    dropped_empty: int
    """Rows with a blank prompt or answer."""
    digest: str
    """SHA-256 over ids, tokens and masks of `rows` in order."""
    lengths: LengthStatistics
    """Of all rows that are not empty, also those that are too long."""


def strip_reasoning(text: str) -> str:
    """Remove `<think>...</think>`; one that is never opened reaches back to the beginning, one never closed to the end."""
    text = _THINK.sub("", text)
    return text.rpartition("</think>")[2].strip()


def answer_only(text: str) -> str:
    """Return the content of the last `<answer>`, else the last fenced code block with its fence, else nothing."""
    if answers := _ANSWER.findall(text):
        return str(answers[-1]).strip()
    blocks = [found.group(0) for found in _FENCE.finditer(text)]
    return blocks[-1].strip() if blocks else ""


def clean(messages: Messages, data: DataSpec) -> Messages:
    """Apply `data.system_prompt`, `data.strip_reasoning` and `data.answer_fence` to a row; a row's own system turn stays."""
    cleaned: list[Message] = []
    if data.system_prompt and not any(turn["role"] == "system" for turn in messages):
        cleaned.append(message("system", data.system_prompt))
    for turn in messages:
        content = turn["content"]
        if turn["role"] == "assistant":
            content = strip_reasoning(content) if data.strip_reasoning else content
            content = answer_only(content) if data.answer_fence else content
        cleaned.append(message(turn["role"], content))
    return cleaned


def _turns(value: Any, role: str, place: str, column: str) -> list[Message]:
    """Read one column: text is a turn of `role`, a list holds turns of its own, null is a blank turn."""
    if value is None or isinstance(value, str):
        return [message(role, value or "")]
    if not isinstance(value, list) or not all(isinstance(turn, Mapping) for turn in value):
        raise InputError(
            f"{place}: column {column!r} holds a {type(value).__name__}. Allowed: text, or a list of {{role, content}} messages."
        )
    for turn in value:
        for key in ("role", "content"):
            if not isinstance(turn.get(key), str):
                raise InputError(
                    f"{place}: a message in column {column!r} has {key}={turn.get(key)!r} and keys {', '.join(turn)}. "
                    "Allowed: text under both 'role' and 'content'."
                )
    return [message(turn["role"], turn["content"]) for turn in value]


def _record_messages(place: str, record: Mapping[str, Any], data: DataSpec) -> Messages:
    if data.messages_column:
        messages = _turns(record[data.messages_column] or [], "user", place, data.messages_column)
    else:
        messages = _turns(record[data.prompt_column], "user", place, data.prompt_column)
        messages += _turns(record[data.response_column], "assistant", place, data.response_column)
    for turn in messages:
        if any("\ud800" <= character <= "\udfff" for character in turn["content"]):
            raise InputError(f"{place} holds half of a surrogate pair (\\ud800 to \\udfff), which is no text. Repair the row.")
    roles = [turn["role"] for turn in messages]
    if "assistant" not in roles:
        raise InputError(f"{place} has no assistant turn: its roles are {roles}. Each training row needs a turn with role 'assistant'.")
    return messages


def _source_messages(data: DataSpec, cache: Path) -> Iterator[Messages]:
    if data.source == "rtl":
        for problem in build_rtl(data.rtl).train:
            yield [message("user", problem.prompt), message("assistant", problem.answer)]
        return
    columns = [data.messages_column] if data.messages_column else [data.prompt_column, data.response_column]
    for place, record in read_records(data.source, data.split, columns, cache):
        yield _record_messages(place, record, data)


def load_messages(data: DataSpec, cache: Path) -> list[Messages]:
    """Return the training rows of `data` as chat messages, cleaned, at most `data.max_rows`; rows with blank turns are still in.

    Args:
        data: What to read.
        cache: Folder for downloads when neither HF_HOME nor HF_HUB_CACHE is set.

    Raises:
        InputError: no such source, a bad row (named by its place), or no rows at all.
    """
    rows = islice(_source_messages(data, cache), data.max_rows or None)
    messages = [clean(row, data) for row in rows]
    if not messages:
        raise InputError(f"data.source={data.source!r} has no rows. Give a source with at least one row.")
    return messages


def _digest(rows: Iterable[Row]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(f"{row.id}/{len(row.tokens)}\n".encode())
        digest.update(row.tokens.astype("<i4").tobytes())
        digest.update(row.loss_mask.tobytes())
    return digest.hexdigest()


def encode_rows(conversations: Sequence[Messages], tokenizer: ChatTokenizer, max_length: int) -> Dataset:
    """Tokenize `conversations`; rows over `max_length` tokens and rows with a blank turn are dropped and counted.

    Raises `InputError` for a row whose mask is all zero, and when nothing is left: all rows are empty, or the limit is below the shortest.
    """
    encoded = []
    for number, turns in enumerate(conversations, 1):
        row = tokenizer.encode_row(turns) if all(turn["content"].strip() for turn in turns) else None
        if row is None:
            continue
        if not row.loss_mask[1:].any():  # The first token is predicted from nothing.
            raise InputError(
                f"Row {number} of {len(conversations)} has no token that carries loss: its mask is all zero under this chat template. Each "
                "row needs an assistant turn with text behind something that it answers."
            )
        encoded.append(row)
    empty = len(conversations) - len(encoded)
    if not encoded:
        raise InputError(
            f"All {len(conversations)} rows are empty: each has a blank prompt or answer. With data.answer_fence or data.strip_reasoning, "
            "the answers may lack a fence or hold nothing but reasoning."
        )
    lengths = length_statistics([len(row.tokens) for row in encoded])
    rows = tuple(row for row in encoded if len(row.tokens) <= max_length)
    if not rows:
        raise InputError(
            f"data.max_length={max_length} is below the shortest row, which has {lengths.shortest} tokens (the mean is {lengths.mean:.0f}, "
            f"the longest {lengths.longest}). Raise data.max_length; rows are dropped when too long, never cut."
        )
    return Dataset(rows, len(encoded) - len(rows), empty, _digest(rows), lengths)


def load_rows(data: DataSpec, tokenizer: ChatTokenizer, cache: Path) -> Dataset:
    """Read, clean and tokenize the training rows of `data` (see `load_messages` and `encode_rows`)."""
    return encode_rows(load_messages(data, cache), tokenizer, data.max_length)
