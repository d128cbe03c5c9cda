"""The filters of Compute's lists, as far as Ray writes them: `=`, `:*`, AND, OR, NOT and parentheses."""

import re
from collections.abc import Callable, Mapping
from typing import Any

_WORDS = re.compile(r"\s*(\(|\)|AND\b|OR\b|NOT\b|[^\s()]+\s*=\s*[^\s()]+|[^\s():=]+:\*)")


def matches(item: Mapping[str, Any], text: str) -> bool:
    """Whether `item` meets the filter `text`; ValueError when that is not a filter."""
    words, at = [], 0
    while text[at:].strip():
        found = _WORDS.match(text, at)
        if found is None:
            raise ValueError(f"Invalid value for field 'filter': {text!r}.")
        words.append(found[1])
        at = found.end()
    value = _either(item, words)
    if words:
        raise ValueError(f"Invalid value for field 'filter': {text!r}.")
    return value


def _either(item: Mapping[str, Any], words: list[str]) -> bool:
    return any(_operands(words, "OR", lambda: all(_operands(words, "AND", lambda: _one(item, words)))))


def _operands(words: list[str], operator: str, read: Callable[[], bool]) -> list[bool]:
    """What stands around `operator`: all of it is read, whatever the first says."""
    found = [read()]
    while words and words[0] == operator:
        words.pop(0)
        found.append(read())
    return found


def _one(item: Mapping[str, Any], words: list[str]) -> bool:
    if not words:
        raise ValueError("Invalid value for field 'filter': it ends too early.")
    word = words.pop(0)
    if word == "NOT":
        return not _one(item, words)
    if word == "(":
        value = _either(item, words)
        if not words or words.pop(0) != ")":
            raise ValueError("Invalid value for field 'filter': a parenthesis is open.")
        return value
    if word.endswith(":*"):
        return _field(item, word[:-2]) is not None
    name, separator, wanted = word.partition("=")
    if not separator:
        raise ValueError(f"Invalid value for field 'filter': {word!r}.")
    return _field(item, name.strip()) == wanted.strip()


def _field(item: Mapping[str, Any], path: str) -> Any:
    first, _, rest = path.partition(".")
    value = item.get(first)
    return value.get(rest) if rest and isinstance(value, Mapping) else value
