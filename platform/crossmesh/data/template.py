"""A model's chat template: compiled and rendered as transformers does it, in a sandbox, with the date that was fixed for the trial."""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from crossmesh.data.conversation import Messages
from crossmesh.errors import InputError
from crossmesh.files import digest_text

# Not characters by Unicode's definition, so that no text holds them: they mark what stands between generation tags.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` of training templates: what is inside is the model's to learn."""

    tags = {"generation"}  # noqa: RUF012 (jinja declares it so)

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        environment.extend(marks_generation=False, has_generation=False)

    def parse(self, parser: Any) -> nodes.Node:
        """Return a call block, whose text `_mark` puts between the two marks."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        self.environment.has_generation = True  # type: ignore[attr-defined]
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Any) -> str:
        text = str(caller())
        return f"{_OPEN}{text}{_CLOSE}" if self.environment.marks_generation else text  # type: ignore[attr-defined]


def _raise_exception(text: str) -> None:
    raise jinja2.TemplateError(text)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class ChatTemplate:
    """One compiled chat template."""

    def __init__(self, folder: Path, text: str, named: Mapping[str, str], now: datetime | None = None) -> None:
        """Compile `text` with the options, filter and globals that transformers gives it.

        Args:
            folder: Of the model, for messages.
            text: The template.
            named: Special tokens by name, which templates may refer to.
            now: What `strftime_now` tells; None: the clock.
        """
        self._folder, self._named = folder, dict(named)
        self.digest = digest_text(text)
        extensions = [_GenerationTag, jinja2.ext.loopcontrols]
        self._environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        self._environment.filters["tojson"] = _tojson
        try:
            # A template whose date is fixed defines the function itself. Globals would not be among what is found.
            self.uses_date = "strftime_now" in meta.find_undeclared_variables(self._environment.parse(text))
            self._environment.globals.update(raise_exception=_raise_exception, strftime_now=(now or datetime.now()).strftime)
            self._template = self._environment.from_string(text)
        except jinja2.TemplateError as error:
            raise InputError(f"The chat template of {folder} does not compile: {error}.") from error

    @property
    def has_generation(self) -> bool:
        """Whether the template marks what is learned with `{% generation %}`."""
        return bool(self._environment.has_generation)  # type: ignore[attr-defined]

    def render(self, messages: Messages, context: Mapping[str, Any], add_generation_prompt: bool = False) -> str:
        """Return the text of a conversation, ending with the assistant's header when `add_generation_prompt`.

        Raises `InputError` when the template refuses the conversation (say, an unsupported role).
        """
        beside = {"tools": None, "documents": None, **context}
        values = {**self._named, **beside, "messages": list(messages), "add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render(values)
        except Exception as error:  # A template is a program of somebody else's and may fail in any way.
            roles = [str(turn.get("role")) for turn in messages]
            raise InputError(f"The chat template of {self._folder} refuses a row with roles {roles}: {error}.") from error

    def generation_spans(self, messages: Messages, context: Mapping[str, Any], text: str) -> list[tuple[int, int]]:
        """Return the character ranges of `text`, the rendering of `messages`, that stand between generation tags."""
        self._environment.marks_generation = True  # type: ignore[attr-defined]
        try:
            marked = self.render(messages, context)
        finally:
            self._environment.marks_generation = False  # type: ignore[attr-defined]
        if marked.replace(_OPEN, "").replace(_CLOSE, "") != text:
            raise InputError(f"The chat template of {self._folder} changes text that stands between its generation tags.")
        spans, start, length = [], 0, 0
        for character in marked:
            if character == _OPEN:
                start = length
            elif character == _CLOSE:
                spans.append((start, length))
            else:
                length += 1
        return spans
