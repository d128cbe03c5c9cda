"""What an OpenAI-compatible endpoint sends back, read as it is: its answers, odd ones included, and its refusals of parameters.

Pure, and of the standard library alone: the client that runs inside lm-evaluation-harness reads answers by the same rules.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crossmesh.files import parse_json

REQUEST_TIMEOUT_S = 900.0
"""A slow engine with a long queue is not a broken one."""
NO_ANSWER_TRIES = 4
"""For what comes with status 200 and is not an answer."""
REFUSED_PROMPT = (400, 413, 422)
REFUSED_CALLER = (401, 403, 404)
HALF_CHARACTER = "half of a surrogate pair, replaced by U+FFFD"
_HALF = re.compile("[\ud800-\udfff]")
_COUNT_LIMIT = 1 << 40
_BUSY = (408, 409, 429)
_RENAMED = {"max_tokens": "max_completion_tokens"}
"""Names that newer endpoints have for parameters that they refuse."""
_REFUSAL = re.compile(
    r"unsupported|not\s+(?:currently\s+)?support|n[o']t support|unknown|unrecogni[sz]ed|unexpected|not (?:allowed|permitted|valid|accepted)"
    r"|extra[_ ](?:forbidden|fields|inputs)|deprecated|invalid (?:parameter|argument|field)",
    re.IGNORECASE,
)
_REFUSALS = ("unsupported_parameter", "unsupported_value", "unknown_parameter")


@dataclass(frozen=True)
class Answer:
    """One answer of a model."""

    text: str
    finish_reason: str
    """As the endpoint said; empty when it did not."""
    prompt_tokens: int
    """0 when the endpoint did not say, as `completion_tokens`."""
    completion_tokens: int
    note: str = ""
    """What of the text could not be kept as it came."""


class NoAnswerError(ValueError):
    """What came with status 200 is not an answer.

    Attributes:
        kind: a word for counting.
        busy: whether the endpoint says that another attempt may succeed.
    """

    def __init__(self, kind: str, message: str, *, busy: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.busy = busy


def read_answer(body: bytes) -> Answer:
    """Return the first answer of a chat completion.

    Raises:
        NoAnswerError: there is none.
    """
    try:
        said = parse_json(body)
    except ValueError as error:
        raise NoAnswerError("not_json", f"not JSON: {_start(body)}") from error
    if not isinstance(said, Mapping):
        raise NoAnswerError("not_json", f"not a JSON object: {_start(body)}")
    choices = said.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, Mapping) else None
    if not isinstance(first, Mapping) or not isinstance(message, Mapping):
        raise _error_in(said) or NoAnswerError("no_choices", f"no choices with a message: {_start(body)}")
    text = _text(message.get("content"))
    if text is None:
        raise NoAnswerError("no_text", f"the content of the message is not text: {_start(body)}")
    usage, finish = said.get("usage"), first.get("finish_reason")
    counts = usage if isinstance(usage, Mapping) else {}
    whole = _HALF.sub("\ufffd", text)
    return Answer(
        whole,
        _HALF.sub("\ufffd", finish) if isinstance(finish, str) else "",
        _count(counts.get("prompt_tokens")),
        _count(counts.get("completion_tokens")),
        "" if whole == text else HALF_CHARACTER,
    )


def _text(content: object) -> str | None:
    """The text of a message, whole or in parts; a message without any has an empty one. None: it is something else."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    parts = [part.get("text", "") if isinstance(part, Mapping) else part for part in content]
    return "".join(parts) if all(isinstance(part, str) for part in parts) else None


def _count(value: object) -> int:
    """A number of tokens; 0 for what cannot be one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _COUNT_LIMIT else 0


def _error_in(said: Mapping[str, Any]) -> NoAnswerError | None:
    """The error that an endpoint sends with status 200."""
    error = said.get("error")
    if not error:
        return None
    code = error.get("code") if isinstance(error, Mapping) else None
    number = int(code) if isinstance(code, int) or (isinstance(code, str) and code.isdecimal() and code.isascii() and len(code) < 4) else 0
    busy = number in _BUSY or 500 <= number < 600
    message = error.get("message") if isinstance(error, Mapping) else error
    return NoAnswerError(f"error_{number}" if number else "error", str(message)[:300], busy=busy)


def _start(body: bytes) -> str:
    return repr(" ".join(body[:400].decode(errors="replace").split())[:200])


class Parameters:
    """The parameters that an endpoint takes, learned from its refusals.

    One that is refused by name (status 400 or 422) is not sent again; `max_tokens` is then sent as `max_completion_tokens`.
    """

    def __init__(self) -> None:
        self._refused: set[str] = set()

    def sent(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """`wanted` as the endpoint takes it."""
        kept = {name: value for name, value in wanted.items() if name not in self._refused}
        return kept | {_RENAMED[name]: wanted[name] for name in wanted if name in self._refused and name in _RENAMED}

    def refuses(self, status: int, body: bytes, sent: Mapping[str, Any]) -> bool:
        """Whether a refused request is to be sent again with other parameters than `sent`: the body names one that can be left out."""
        name = refused_parameter(body, sent) if status in (400, 422) else None
        if name is None or name in _RENAMED.values():
            return False
        self._refused.add(name)
        return True

    def changes(self, wanted: Mapping[str, Any]) -> tuple[str, ...]:
        """What is sent otherwise than it is `wanted`, in words; `left_out` understands them."""
        names = sorted(self._refused & wanted.keys())
        return tuple(f"{name} as {_RENAMED[name]}" if name in _RENAMED else name for name in names)


def left_out(changes: tuple[str, ...]) -> tuple[str, ...]:
    """The parameters that were not sent at all."""
    return tuple(one for one in changes if " as " not in one)


def refused_parameter(body: bytes, sent: Mapping[str, Any]) -> str | None:
    """Return which of the parameters `sent` an endpoint refuses, as far as its error says; None when the error is about something else.

    The error must name the parameter and say that it is not taken: `param` with OpenAI's codes, FastAPI's `loc`, or words.
    """
    text = body[:20_000].decode(errors="replace")
    try:
        said = parse_json(body)
    except ValueError:
        said = None
    error = said.get("error", said) if isinstance(said, Mapping) else None
    code, named = (error.get("code"), error.get("param")) if isinstance(error, Mapping) else (None, None)
    if code not in _REFUSALS and not _REFUSAL.search(text):
        return None
    if isinstance(named, str) and named in sent:
        return named
    found = {name: match.start() for name in sent if (match := re.search(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", text))}
    return min(found, key=lambda name: found[name], default=None)
