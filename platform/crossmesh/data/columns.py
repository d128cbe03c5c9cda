"""A row's columns as a conversation: what each of them holds, checked, and which of its answers are learned.

Which columns are read is `forms.py`, what a turn may hold `conversation.py`.
"""

from collections.abc import Mapping
from typing import Any

from crossmesh.data.conversation import (
    CONTEXT_KEYS,
    LEARNING_KEYS,
    Conversation,
    Message,
    message,
    read_context,
    read_turn,
)
from crossmesh.data.forms import Form, parts
from crossmesh.errors import InputError

NO_CONTENT = "an answer without content"
_NO_PROMPT = "no prompt (null)"
_NO_TURNS = "no messages (null or an empty list)"


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


def conversation_of(place: str, record: Mapping[str, Any], form: Form) -> Conversation:
    """Turn the columns of a row into a conversation, as `form` (`forms.find_form`) says. `place` names the row in messages.

    Raises `InputError` for values that are no turns, and for a row that no answer is in.
    """
    turns: list[Message] = []
    learned: list[bool] = []
    unread = _unread(record, form)
    for column, value, role in parts(record, form, place):
        found, marks = _turns(value, role, place, column)
        if not found:
            problem = _NO_TURNS if form.turns else _NO_PROMPT if role == "user" else NO_CONTENT
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
