"""One training row as a conversation: its turns with every key, what the template gets beside them, and which answers are learned.

It reads and checks values; it knows no template, no tokenizer and no file.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crossmesh.errors import InputError
from crossmesh.files import canonical_json, digest_text

Message = Mapping[str, Any]
"""One chat turn as templates and OpenAI-style APIs take it: `{"role": ..., "content": ...}`, and whatever other keys it has."""
Messages = Sequence[Message]

CONTEXT_KEYS = ("tools", "documents", "chat_template_kwargs")
"""Keys of a row that the template gets beside the turns."""
LEARNING_KEYS = ("weight", "train")
"""Keys that say whether an answer is learned; the template does not get them."""
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Keys with the reasoning of an answer."""


def message(role: str, content: str) -> dict[str, str]:
    """Build one chat turn."""
    return {"role": role, "content": content}


@dataclass(frozen=True)
class Conversation:
    """One training row."""

    messages: Messages
    """Turns as the template gets them."""
    context: Mapping[str, Any] = field(default_factory=dict)
    """`tools` and `documents`, and what `chat_template_kwargs` holds."""
    muted: frozenset[int] = frozenset()
    """Indices of answers that are not learned (`weight: 0` or `train: false`)."""
    place: str = "A row"
    """Where the row stands, for messages."""
    problem: str = ""
    """Why the row cannot be used and is dropped; empty: it can."""
    form: str = ""
    """How its columns were read, where the spec does not name them."""
    unread: tuple[str, ...] = ()
    """Columns that hold something and are not part of it."""

    @property
    def learned(self) -> list[int]:
        """Indices of the answers that are learned."""
        return [index for index, turn in enumerate(self.messages) if turn["role"] == "assistant" and index not in self.muted]


def row_id(conversation: Conversation) -> str:
    """Return the identity of a row: the first 64 bits of the digest of all that the model sees of it and of what is learned."""
    turns = []
    for turn in conversation.messages:
        others = {key: value for key, value in turn.items() if key not in ("role", "content")}
        turns.append([turn["role"], turn["content"], *([others] if others else [])])
    beside = [dict(conversation.context), sorted(conversation.muted)]
    return digest_text(canonical_json([turns, *beside] if any(beside) else turns))[:16]


def read_turn(turn: Mapping[str, Any], place: str) -> tuple[dict[str, Any], bool]:
    """Return a turn as the template gets it, and whether it may be learned.

    A key that holds null is left out, as columnar files fill turns up with them. Text parts are joined and arguments of tool calls
    are parsed, both as vLLM does it. Raises `InputError` for what cannot be honored.
    """
    kept = {key: value for key, value in turn.items() if value is not None or key == "content"}
    role = kept.get("role")
    if not isinstance(role, str):
        raise InputError(
            f"{place}: a message has role={turn.get('role')!r} and keys {', '.join(turn)}. Allowed: text under 'role' and 'content'."
        )
    if "tool_calls" in kept:
        kept["tool_calls"] = _tool_calls(kept["tool_calls"], place)
        if not kept["tool_calls"]:
            del kept["tool_calls"]
    learned = _learned(kept, role, place)
    content = _content(kept, place)
    ordered = {"role": role, "content": content} | {key: value for key, value in kept.items() if key not in ("role", "content")}
    return ordered, learned


def _content(turn: Mapping[str, Any], place: str) -> str:
    content = turn.get("content")
    if isinstance(content, str):
        return content
    if content is None and "content" not in turn and not any(key in turn for key in ("tool_calls", *REASONING_KEYS)):
        raise InputError(f"{place}: a message has no 'content' and keys {', '.join(turn)}. Allowed: text under 'role' and 'content'.")
    if content is None:
        return ""
    if not isinstance(content, list):
        raise InputError(f"{place}: a message has content={content!r}. Allowed: text, or a list of text parts.")
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) else part
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        if kind != "text" or not isinstance(text, str):
            raise InputError(
                f"{place}: a message has a content part of type {kind!r}. Only text is trained on: remove the rows with images or audio."
            )
        texts.append(text)
    return "\n".join(texts)


def _tool_calls(calls: Any, place: str) -> list[Any]:
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise InputError(f"{place}: 'tool_calls' holds {calls!r:.80}. Allowed: a list of {{type, function: {{name, arguments}}}}.")
    read = []
    for call in without_nulls(calls):
        function = call.get("function", call)
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments) if arguments.strip() else {}
            except ValueError as error:
                raise InputError(f"{place}: the arguments of a tool call are not JSON: {arguments!r:.80} ({error}).") from error
            function = {**function, "arguments": arguments}
            call = {**call, "function": function} if "function" in call else function  # noqa: PLW2901
        read.append(call)
    return read


def without_nulls(value: Any) -> Any:
    """Remove keys that hold null, at any depth: columnar files give every struct the keys of all."""
    if isinstance(value, Mapping):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def _learned(turn: dict[str, Any], role: str, place: str) -> bool:
    """Take `weight` and `train` out of a turn and return whether it is learned."""
    learned = True
    for key in LEARNING_KEYS:
        if key not in turn:
            continue
        value = turn.pop(key)
        if value not in (0, 1):
            raise InputError(
                f"{place}: a message has {key}={value!r}. Allowed: 0 or false (not learned), 1 or true. "
                "Answers cannot be weighted in between."
            )
        if value and role != "assistant":
            raise InputError(f"{place}: a message of role {role!r} has {key}={value!r}. Only assistant turns are learned: remove the key.")
        learned = learned and bool(value)
    return learned


def read_context(record: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return what the template gets beside the turns. Raises `InputError` for a wrong type."""
    found: dict[str, Any] = {}
    for key, kind in (("tools", list), ("documents", list), ("chat_template_kwargs", dict)):
        value = record.get(key)
        if isinstance(value, str) and value.strip():
            try:
                value = json.loads(value)
            except ValueError as error:
                raise InputError(f"{place}: {key!r} is text that is not JSON: {error}. Allowed: a JSON {kind.__name__}.") from error
        if value is None or value in ("", [], {}):
            continue
        if not isinstance(value, kind):
            raise InputError(f"{place}: {key!r} holds a {type(value).__name__}. Allowed: a {kind.__name__}.")
        value = without_nulls(value)
        if key == "chat_template_kwargs":
            reserved = {"messages", "tools", "documents", "add_generation_prompt"} & set(value)
            if reserved:
                raise InputError(f"{place}: chat_template_kwargs holds {', '.join(sorted(reserved))}, which have their own place in a row.")
            found |= value
        else:
            found[key] = value
    return found
