"""From `DataSpec` to training rows: conversations of any source, cleaned as the spec says, tokenized, filtered and digested.

Rows that are too long or empty are dropped and counted by reason, never cut. Reading files is `readers.py`, what a row may hold
`conversation.py`; templates and masks are `chat.py`.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from crossmesh.config.training import DataSpec
from crossmesh.data.answers import answer_only
from crossmesh.data.batches import Row
from crossmesh.data.chat import ChatTokenizer, unused_keys
from crossmesh.data.conversation import (
    CONTEXT_KEYS,
    LEARNING_KEYS,
    REASONING_KEYS,
    Conversation,
    Message,
    message,
    read_context,
    read_turn,
)
from crossmesh.data.forms import Form, find_form, parts
from crossmesh.data.lengths import LengthStatistics, length_statistics
from crossmesh.data.markdown import strip_reasoning
from crossmesh.data.readers import read_records
from crossmesh.data.rtl import build_rtl
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
_NO_PROMPT = "no prompt (null)"
_NO_TURNS = "no messages (null or an empty list)"
_NO_CONTENT = "an answer without content"
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


def _turns(value: Any, role: str, place: str, column: str) -> tuple[list[Message], list[bool]]:
    """Read one column: text is a turn of `role`, a list holds turns of its own, null none. Returns also which turns are learned."""
    if value is None:
        return [], []
    if isinstance(value, str):
        return [message(role, value)], [True]
    if not isinstance(value, list) or not all(isinstance(turn, Mapping) for turn in value):
        raise InputError(
            f"{place}: column {column!r} holds a {type(value).__name__}. Allowed: text, or a list of {{role, content}} messages."
        )
    read = [read_turn(turn, f"{place}, column {column!r}") for turn in value]
    return [turn for turn, _ in read], [learned for _, learned in read]


def _record_conversation(place: str, record: Mapping[str, Any], form: Form) -> Conversation:
    turns: list[Message] = []
    learned: list[bool] = []
    unread = _unread(record, form)
    for column, value, role in parts(record, form, place):
        found, marks = _turns(value, role, place, column)
        if not found:
            problem = _NO_TURNS if form.turns else _NO_PROMPT if role == "user" else _NO_CONTENT
            return Conversation((), place=place, problem=problem, form=form.found, unread=unread)
        turns, learned = turns + found, learned + marks
    if has_surrogates(turns) or has_surrogates(record.get("tools")):
        raise InputError(f"{place} holds half of a surrogate pair (\\ud800 to \\udfff), which is not text. Repair the row.")
    roles = [turn["role"] for turn in turns]
    if "assistant" not in roles:
        raise InputError(f"{place} has no assistant turn: its roles are {roles}. Each training row needs a turn with role 'assistant'.")
    for key in LEARNING_KEYS:
        if (value := record.get(key)) is not None and value not in (0, 1):
            raise InputError(f"{place}: {key}={value!r}. Allowed: 0 or false (not learned), 1 or true. Rows cannot be weighted in between.")
        if value is not None and not value:
            learned = [False] * len(turns)
    muted = frozenset(index for index, (role, mark) in enumerate(zip(roles, learned, strict=True)) if role == "assistant" and not mark)
    return Conversation(turns, read_context(record, place), muted, place, form=form.found, unread=unread)


def _unread(record: Mapping[str, Any], form: Form) -> tuple[str, ...]:
    """Columns of a row that hold something and become no part of it."""
    read = {*form.columns, *form.optional, *CONTEXT_KEYS, *LEARNING_KEYS}
    return (*form.unread, *(key for key, value in record.items() if key not in read and value not in (None, "")))


def has_surrogates(value: Any) -> bool:
    """Whether any text in `value` holds half of a surrogate pair."""
    if isinstance(value, str):
        return any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, Mapping):
        return any(has_surrogates(one) for pair in value.items() for one in pair)
    return isinstance(value, list) and any(has_surrogates(one) for one in value)


def _source_conversations(data: DataSpec, cache: Path) -> Iterator[Conversation]:
    if data.source == "rtl":
        for number, problem in enumerate(build_rtl(data.rtl).train, 1):
            yield Conversation([message("user", problem.prompt), message("assistant", problem.answer)], place=f"rtl, row {number}")
        return

    def find(names: Sequence[str], place: str) -> Form:
        return find_form(names, data, place)

    for place, record, form in read_records(data.source, data.split, find, cache, also=(*CONTEXT_KEYS, *LEARNING_KEYS)):
        yield _record_conversation(place, record, form)


def load_conversations(data: DataSpec, cache: Path) -> list[Conversation]:
    """Return the training rows of `data`, cleaned, at most `data.max_rows`; rows with a problem are still in.

    Args:
        data: What to read.
        cache: Folder for downloads when neither HF_HOME nor HF_HUB_CACHE is set.

    Raises:
        InputError: no such source, a bad row (named by its place), or no rows at all.
    """
    rows = islice(_source_conversations(data, cache), data.max_rows or None)
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
    return _NO_CONTENT if blank else ""


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
