"""From `DataSpec` to training rows: conversations of any source, cleaned as the spec says, tokenized, filtered and digested.

Rows that are too long or empty are dropped and counted by reason, never cut. Who reads a source is `readers.py`, what a row may hold
`conversation.py`; templates and masks are `chat.py`.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from crossmesh.config.training import DataSpec
from crossmesh.data.answers import answer_only
from crossmesh.data.batches import Row
from crossmesh.data.chat import ChatTokenizer, unused_keys
from crossmesh.data.columns import NO_CONTENT
from crossmesh.data.conversation import CONTEXT_KEYS, REASONING_KEYS, Conversation, Message, message
from crossmesh.data.lengths import LengthStatistics, length_statistics
from crossmesh.data.markdown import strip_reasoning
from crossmesh.data.readers import read_source
from crossmesh.errors import InputError


@dataclass(frozen=True)
class Dropped:
    """Rows that are not trained on for one reason."""

    reason: str
    count: int
    places: tuple[str, ...]
    """Of the first few."""


@dataclass(frozen=True)
class Dataset:
    """Tokenized rows of one source, in the order of the source."""

    rows: tuple[Row, ...]
    dropped: tuple[Dropped, ...]
    unused: Mapping[str, int]
    """Keys of turns that the chat template leaves out, with the number of rows in which it does."""
    digest: str
    """SHA-256 over ids, tokens and masks of `rows` in order."""
    lengths: LengthStatistics
    """Of all rows that are not empty, also those that are too long."""
    forms: tuple[str, ...] = ()
    """How columns were read that the spec does not name."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """`chat_template_kwargs`, where all rows have the same."""
    unread: Mapping[str, int] = field(default_factory=dict)
    """Columns that are not read, with the number of rows that have something in them."""

    @property
    def dropped_long(self) -> int:
        """Rows over `data.max_length`."""
        return sum(one.count for one in self.dropped if one.reason == TOO_LONG)

    @property
    def dropped_empty(self) -> int:
        """Rows with nothing to learn."""
        return sum(one.count for one in self.dropped) - self.dropped_long

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids of the tokens that answers end with: the last of each run of the loss mask."""
        ends = (row.tokens[row.loss_mask & ~np.append(row.loss_mask[1:], False)] for row in self.rows)
        return tuple(sorted({int(token) for tokens in ends for token in tokens}))


TOO_LONG = "longer than data.max_length"
_NOT_LEARNED = "no answer to learn (weight 0 or train false)"
_NAMED = 3
"""So many places of dropped rows are named."""


def clean(conversation: Conversation, data: DataSpec) -> Conversation:
    """Apply `data.system_prompt`, `data.strip_reasoning` and `data.answer_fence` to a row; a row's own system turn stays."""
    turns: list[Message] = []
    shift = 0
    if data.system_prompt and not any(turn["role"] == "system" for turn in conversation.messages):
        turns.append(message("system", data.system_prompt))
        shift = 1
    for turn in conversation.messages:
        kept = dict(turn)
        if turn["role"] == "assistant":
            if data.strip_reasoning:
                kept = {key: value for key, value in kept.items() if key not in REASONING_KEYS}
                kept["content"] = strip_reasoning(kept["content"])
            if data.answer_fence:
                kept["content"] = answer_only(kept["content"])
        turns.append(kept)
    return replace(conversation, messages=turns, muted=frozenset(index + shift for index in conversation.muted))


def load_conversations(data: DataSpec, cache: Path) -> list[Conversation]:
    """Return the training rows of `data`, cleaned, at most `data.max_rows`; rows with a problem are still in.

    Args:
        data: What to read.
        cache: Folder for downloads when neither HF_HOME nor HF_HUB_CACHE is set.

    Raises:
        InputError: no such source, a bad row (named by its place), or no rows at all.
    """
    rows = islice(read_source(data, cache), data.max_rows or None)
    conversations = [clean(row, data) for row in rows]
    if not conversations:
        raise InputError(f"data.source={data.source!r} has no rows. Give a source with at least one row.")
    return conversations


def _digest(rows: Iterable[Row]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(f"{row.id}/{len(row.tokens)}\n".encode())
        digest.update(row.tokens.astype("<i4").tobytes())
        digest.update(row.loss_mask.tobytes())
    return digest.hexdigest()


def _problem(conversation: Conversation) -> str:
    """Return why a row holds nothing to learn; empty: it does. A blank turn of the system, the user or a tool is no reason."""
    if conversation.problem:
        return conversation.problem
    if not conversation.learned:
        return _NOT_LEARNED
    turns = (conversation.messages[index] for index in conversation.learned)
    blank = any(not turn["content"].strip() and not any(turn.get(key) for key in ("tool_calls", *REASONING_KEYS)) for turn in turns)
    return NO_CONTENT if blank else ""


def encode_rows(conversations: Sequence[Conversation], tokenizer: ChatTokenizer, max_length: int) -> Dataset:
    """Tokenize `conversations`; rows over `max_length` tokens and rows with nothing to learn are dropped and counted by reason.

    Raises `InputError` for a row whose mask is all zero, and when nothing is left: all rows are empty, or the limit is below the shortest.
    """
    encoded: list[Row] = []
    dropped: dict[str, list[str]] = {}
    rows: list[Row] = []
    for conversation in conversations:
        parts = () if (problem := _problem(conversation)) else tokenizer.encode_row(conversation)
        if not parts:
            dropped.setdefault(problem or _NOT_LEARNED, []).append(conversation.place)
        for row in parts:
            if not row.loss_mask[1:].any():  # The first token is predicted from nothing.
                raise InputError(
                    f"{conversation.place} has no token that carries loss: its mask is all zero under this chat template. Each "
                    "row needs an assistant turn with text behind something that it answers."
                )
            encoded.append(row)
            if len(row.tokens) <= max_length:
                rows.append(row)
            else:
                dropped.setdefault(TOO_LONG, []).append(conversation.place)
    counted = tuple(Dropped(reason, len(places), tuple(places[:_NAMED])) for reason, places in dropped.items())
    if not encoded:
        why = "; ".join(f"{one.count} x {one.reason} ({', '.join(one.places)})" for one in counted)
        raise InputError(
            f"All {len(conversations)} rows are empty: {why}. With data.answer_fence or data.strip_reasoning, "
            "the answers may lack a fence or hold nothing but reasoning."
        )
    lengths = length_statistics([len(row.tokens) for row in encoded])
    if not rows:
        raise InputError(
            f"data.max_length={max_length} is below the shortest row, which has {lengths.shortest} tokens (the mean is {lengths.mean:.0f}, "
            f"the longest {lengths.longest}). Raise data.max_length; rows are dropped when too long, never cut."
        )
    read = [one for one in conversations if not one.problem]
    unused = unused_keys(tokenizer, read)
    forms = tuple(sorted({one.form for one in conversations if one.form}))
    unread = Counter(key for one in conversations for key in one.unread)
    return Dataset(tuple(rows), counted, unused, _digest(rows), lengths, forms, _common_kwargs(read, unused), unread)


def _common_kwargs(conversations: Sequence[Conversation], unused: Mapping[str, int]) -> dict[str, Any]:
    """The variables that all conversations give the chat template alike, but for those that it uses nowhere."""
    told = [{key: value for key, value in one.context.items() if key not in (*CONTEXT_KEYS, *unused)} for one in conversations]
    return told[0] if told and all(one == told[0] for one in told) else {}


def load_rows(data: DataSpec, tokenizer: ChatTokenizer, cache: Path) -> Dataset:
    """Read, clean and tokenize the training rows of `data` (see `load_conversations` and `encode_rows`)."""
    return encode_rows(load_conversations(data, cache), tokenizer, data.max_length)
