"""The forms in which people keep conversations, told by the names of columns, and each read as chat turns.

It knows names and values; reading files is `files.py`, what a turn may hold `conversation.py`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crossmesh.config.training import DataSpec
from crossmesh.data.conversation import message
from crossmesh.errors import InputError, closest_name

_TURNS = ("messages", "conversations", "conversation", "dialogue", "dialog", "chat", "turns")
_PROMPTS = ("prompt", "question", "query", "problem", "instruction", "user")
_ANSWERS = ("response", "completion", "answer", "output", "solution", "assistant")
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function_call": "assistant",
}
"""Roles of ShareGPT's `from` as chat templates call them."""


@dataclass(frozen=True)
class Form:
    """How the columns of a file become turns."""

    columns: tuple[str, ...]
    """The columns that each row has."""
    optional: tuple[str, ...] = ()
    """Columns that a row may have beside them."""
    prompt: str = ""
    answer: str = ""
    turns: str = ""
    """The column with the messages; empty: a prompt and its answer."""
    unread: tuple[str, ...] = ()
    """Columns of a columnar file that are not read."""
    found: str = ""
    """What was found out, for the person; empty: the spec names these columns."""


def find_form(names: Sequence[str], data: DataSpec, place: str) -> Form:
    """Return the form of rows with columns `names`: the one that `data` names, else the one form that fits.

    Raises `InputError` when a named column is absent, when no form fits and when several do.
    """
    default = DataSpec()
    if data.messages_column:
        if data.messages_column not in names:
            raise _missing(place, data.messages_column, names)
        return Form((data.messages_column,), ("system",), turns=data.messages_column)
    named = (data.prompt_column, data.response_column)
    if all(one in names for one in named):
        return Form(named, prompt=named[0], answer=named[1])
    for column, standard in zip(named, (default.prompt_column, default.response_column), strict=True):
        if column not in names and column != standard:
            raise _missing(place, column, names)
    turns = [one for one in _TURNS if one in names]
    if turns:
        return Form((turns[0],), ("system",), turns=turns[0], found=f"messages from column {turns[0]!r}")
    if {"instruction", "output"} <= set(names):
        said = "Alpaca: instruction, input and output"
        return Form(("instruction", "output"), ("input", "system", "history"), prompt="instruction", answer="output", found=said)
    prompts = [named[0]] if named[0] in names else [one for one in _PROMPTS if one in names]
    answers = [named[1]] if named[1] in names else [one for one in _ANSWERS if one in names]
    if len(prompts) == len(answers) == 1:
        said = f"prompts from column {prompts[0]!r}, answers from column {answers[0]!r}"
        return Form((prompts[0], answers[0]), ("system",), prompt=prompts[0], answer=answers[0], found=said)
    raise _missing(place, next(one for one in named if one not in names), names)


def _missing(place: str, column: str, found: Sequence[str]) -> InputError:
    guess = closest_name(column, found)
    hint = f" Did you mean {guess!r}?" if guess else ""
    advice = "Set data.messages_column, or data.prompt_column and data.response_column."
    if {"chosen", "rejected"} <= set(found):
        advice = "Rows of preferences: set data.messages_column=chosen (or data.response_column=chosen) to train on what was chosen."
    return InputError(f"{place} has no column {column!r}. It has: {', '.join(found) or 'none'}.{hint} {advice}")


def check_columns(record: Mapping[str, Any], form: Form, place: str) -> None:
    """Raise `InputError` for a row that lacks a column which the first row of its file has."""
    for column in form.columns:
        if column not in record:
            raise _missing(place, column, list(record))


def parts(record: Mapping[str, Any], form: Form, place: str) -> list[tuple[str, Any, str]]:
    """Return what a row says in order: (column, value, role of plain text). ShareGPT's turns are turned into messages.

    Raises `InputError` for a role that is not known.
    """
    before: list[tuple[str, Any, str]] = []
    if isinstance(system := record.get("system"), str) and system.strip() and "system" in form.optional:
        before.append(("system", system, "system"))
    if form.turns:
        return [*before, (form.turns, _messages(record[form.turns], form.turns, place), "user")]
    for pair in record.get("history") or () if "history" in form.optional else ():
        if not isinstance(pair, list) or len(pair) != 2:
            raise InputError(f"{place}: column 'history' holds {pair!r:.80}. Allowed: pairs of a prompt and its answer.")
        before += [("history", pair[0], "user"), ("history", pair[1], "assistant")]
    prompt, extra = record[form.prompt], record.get("input") if "input" in form.optional else None
    if isinstance(prompt, str) and isinstance(extra, str) and extra.strip():
        prompt = f"{prompt}\n\n{extra}"
    return [*before, (form.prompt, _messages(prompt, form.prompt, place), "user"), (form.answer, record[form.answer], "assistant")]


def _messages(value: Any, column: str, place: str) -> Any:
    """Return turns as messages; JSON text, as tables of text hold lists, is parsed; other values stay."""
    if isinstance(value, str) and value.lstrip().startswith("[{"):
        try:
            value = json.loads(value)
        except ValueError:
            return value
    if not isinstance(value, list):
        return value
    return [_turn(one, f"{place}, column {column!r}") if _shared(one) else one for one in value]


def _shared(turn: Any) -> bool:
    return isinstance(turn, Mapping) and isinstance(turn.get("from"), str) and "value" in turn and turn.get("role") is None


def _turn(turn: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Turn ShareGPT's {from, value} into {role, content}; other keys stay."""
    spoken = str(turn["from"])
    if spoken.lower() not in _ROLES:
        raise InputError(f"{place}: a turn is from={spoken!r}. Allowed: {', '.join(_ROLES)}.")
    others = {key: value for key, value in turn.items() if key not in ("from", "value", "role", "content")}
    if spoken.lower() == "function_call":
        try:
            call = json.loads(turn["value"]) if isinstance(turn["value"], str) else turn["value"]
        except ValueError as error:
            raise InputError(f"{place}: a function_call is not JSON: {turn['value']!r:.80} ({error}).") from error
        calls = call if isinstance(call, list) else [call]
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": one} for one in calls], **others}
    return {**message(_ROLES[spoken.lower()], turn["value"]), **others}
