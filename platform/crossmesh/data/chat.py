"""Chat messages to tokens with an assistant-only loss mask, through the model's own template and tokenizer.

Needs tokenizers and jinja2 only, so the driver may use it; the tokens are those of transformers' `apply_chat_template`. Which
characters belong to the assistant is found by rendering a row again with a placeholder in place of the answer, which works for
any template that copies the answer into its output, and every mask is checked by decoding it. It reads no data files.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import numpy as np
import numpy.typing as npt
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer, processors

from crossmesh.data.batches import Row
from crossmesh.errors import InputError, reading
from crossmesh.files import canonical_json, digest_text, read_json

Message = Mapping[str, str]
"""One chat turn in the form that templates and OpenAI-style APIs take: `{"role": ..., "content": ...}`."""
Messages = Sequence[Message]

# Placeholders that share neither their first nor their last character: what two renderings have in common ends exactly where
# the answer begins and starts again exactly where it ends. Plain letters, so that no template trims or escapes them.
_PLACEHOLDERS = ("AqA", "BqB")


def message(role: str, content: str) -> dict[str, str]:
    """Build one chat turn."""
    return {"role": role, "content": content}


def row_id(messages: Messages) -> str:
    """Return the identity of a row: the first 64 bits of the digest of its roles and contents, as hex."""
    return digest_text(canonical_json([[turn["role"], turn["content"]] for turn in messages]))[:16]


@dataclass(frozen=True)
class _Span:
    """Character range of one assistant turn in a rendering."""

    start: int
    """First character the model has to produce: all before it is prompt."""
    content_end: int
    """End of the answer; the end-of-turn token follows."""


class _GenerationTag(jinja2.ext.Extension):
    """Accept `{% generation %}...{% endgeneration %}` of training templates and render what is inside."""

    tags = {"generation"}  # noqa: RUF012 (jinja declares it so)

    def parse(self, parser: Any) -> Any:
        """Return the statements between the two tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(text: str) -> None:
    raise jinja2.TemplateError(text)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _compile(template: str) -> jinja2.Template:
    """Compile a chat template with the options, filter and globals that transformers gives it; it runs sandboxed."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment.from_string(template)


def _template_text(folder: Path, config: Mapping[str, Any]) -> str:
    """Return the chat template of a model folder: `chat_template.jinja`, else the one in `tokenizer_config.json`."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        with reading(file, "a Jinja template in UTF-8"):
            return file.read_text(encoding="utf-8")
    found = config.get("chat_template")
    if isinstance(found, list):
        found = {entry["name"]: entry["template"] for entry in found}.get("default")
    if not isinstance(found, str):
        raise InputError(
            f"{folder} has no chat template. Needed: chat_template.jinja, or chat_template in tokenizer_config.json. "
            "Base models often come without one: use the instruction-tuned variant, or put a template file beside the tokenizer."
        )
    return found


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the named tokens (`bos_token`, `eos_token`, ...) that templates may refer to."""
    named = {**config, **extra} if isinstance(extra := config.get("extra_special_tokens"), dict) else dict(config)
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in named.items() if name.endswith("_token")}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _common_prefix(left: str, right: str) -> int:
    """Return how many characters `left` and `right` share at their beginning."""
    return next((index for index, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def _squash(text: str) -> str:
    return "".join(text.split())


class ChatTokenizer:
    """The tokenizer and chat template of a local Hugging Face model folder."""

    def __init__(self, folder: Path) -> None:
        """Read `tokenizer.json`, `tokenizer_config.json` and the template. Raises `InputError` when one is missing."""
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if not (folder / name).is_file():
                raise InputError(f"{folder} has no {name}. Needed: a model folder with tokenizer.json and tokenizer_config.json.")
        with reading(folder / "tokenizer_config.json", "a JSON object"):
            config = {**read_json(folder / "tokenizer_config.json")}
        self._folder = folder
        with reading(folder / "tokenizer.json", "a tokenizer that the tokenizers library can load"):
            self._tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        # The template writes every special token itself. Byte-level post-processors would also trim the offsets the mask rests on.
        self._tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
        self._special_ids = {token for token, added in self._tokenizer.get_added_tokens_decoder().items() if added.special}
        # Older folders name their tokens in a file of their own; what the configuration says goes first.
        older = folder / "special_tokens_map.json"
        with reading(older, "a JSON object"):
            self._named = _special_tokens({**(read_json(older) if older.is_file() else {}), **config})
        template = _template_text(folder, config)
        self.template_digest = digest_text(template)
        try:
            self._template = _compile(template)
        except jinja2.TemplateError as error:
            raise InputError(f"The chat template of {folder} does not compile: {error}.") from error

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added tokens included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def eos_id(self) -> int:
        """Id of the end-of-sequence token."""
        return self._named_id("eos_token")

    @property
    def pad_id(self) -> int:
        """Id that fills sequences up; the end-of-sequence token where the tokenizer names no padding. It never carries loss."""
        return self._named_id("pad_token" if "pad_token" in self._named else "eos_token")

    def _named_id(self, name: str) -> int:
        token = self._tokenizer.token_to_id(self._named[name]) if name in self._named else None
        if token is None:
            raise InputError(f"The tokenizer of {self._folder} has no {name}. Name it in tokenizer_config.json.")
        return int(token)

    def render(self, messages: Messages, add_generation_prompt: bool = False) -> str:
        """Return the text of a conversation, ending with the assistant's header when `add_generation_prompt`.

        Raises `InputError` when the template refuses the conversation (say, an unsupported role).
        """
        try:
            return self._template.render(
                messages=list(messages), tools=None, documents=None, add_generation_prompt=add_generation_prompt, **self._named
            )
        except Exception as error:  # A template is a program of somebody else's and may fail in any way.
            raise InputError(f"The chat template of {self._folder} refuses a row with roles {_roles(messages)}: {error}.") from error

    def encode(self, text: str) -> list[int]:
        """Tokenize text that already holds its special tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of `tokens`, special tokens included."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))

    def encode_row(self, messages: Messages) -> Row | None:
        """Tokenize a training row; the loss mask covers each assistant turn and its end-of-turn token.

        Returns None when an assistant turn is blank: there is nothing to learn. Raises `InputError` when the row has no
        assistant turn, when the template does not copy the answer into its output, or when the mask does not decode to it.
        """
        _check_row(messages)
        answers = [turn["content"] for turn in messages if turn["role"] == "assistant"]
        if not all(answer.strip() for answer in answers):
            return None
        text = self.render(messages)
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        tokens = np.asarray(encoding.ids, np.int32)
        offsets = np.asarray(encoding.offsets, np.int64).reshape(-1, 2)
        mask = np.zeros(len(tokens), np.bool_)
        for index, turn in enumerate(messages):
            if turn["role"] != "assistant":
                continue
            span = self._assistant_span(messages, index, text)
            turn_mask = self._turn_mask(span, text, tokens, offsets)
            self._verify(turn["content"], tokens[turn_mask])
            mask |= turn_mask
        return Row(row_id(messages), tokens, mask)

    def _assistant_span(self, messages: Messages, index: int, text: str) -> _Span:
        """Find the characters of assistant turn `index` in `text`, the rendering of `messages`."""
        first, second = (
            self.render([*messages[:index], {**messages[index], "content": placeholder}, *messages[index + 1 :]])
            for placeholder in _PLACEHOLDERS
        )
        head = _common_prefix(first, second)
        tail = _common_prefix(first[::-1], second[::-1])
        if first[head : len(first) - tail] != _PLACEHOLDERS[0] or not text.endswith(first[len(first) - tail :]):
            raise InputError(
                f"The chat template of {self._folder} does not copy assistant turn {index + 1} of {len(messages)} once and unchanged into "
                "its output, so the answer's tokens cannot be told from the rest. Use a template that does, or rows of one assistant turn."
            )
        # What the server sends before the model answers is never the model's to learn. Some templates write more there when
        # asked for an answer than in a finished conversation; then the answer's own beginning counts.
        asked = self.render(messages[:index], add_generation_prompt=True)
        start = len(asked) if len(asked) <= head and text.startswith(asked) else head
        if not text.startswith(first[:start]):
            raise InputError(
                f"The chat template of {self._folder} rewrites assistant turn {index + 1} of a row. If the rows hold reasoning, set "
                "data.strip_reasoning=true; otherwise use a template that copies the answer."
            )
        return _Span(start, len(text) - tail)

    def _turn_mask(self, span: _Span, text: str, tokens: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Mark the tokens of one assistant turn, from its first character through the special token that ends it."""
        stop = None
        for position in np.flatnonzero(offsets[:, 0] >= span.content_end):
            if text[span.content_end : offsets[position, 0]].strip():
                break
            if int(tokens[position]) in self._special_ids:
                stop = int(offsets[position, 1])
                break
        if stop is None:
            raise InputError(
                f"The chat template of {self._folder} ends an assistant turn without a special token, so a model trained on it would not "
                "learn to stop. Add the end-of-turn token after the answer in chat_template.jinja."
            )
        mask: npt.NDArray[np.bool_] = (offsets[:, 0] >= span.start) & (offsets[:, 1] <= stop)
        # A token that joins the end of the header with the beginning of the answer is the model's if it shows any of the answer.
        for position in np.flatnonzero((offsets[:, 0] < span.start) & (offsets[:, 1] > span.start)):
            mask[position] = bool(text[span.start : offsets[position, 1]].strip())
        return mask

    def _verify(self, content: str, tokens: npt.NDArray[np.int32]) -> None:
        """Check that the masked tokens decode to the answer; white space is left aside, which templates trim."""
        shown = _squash(self.decode(tokens.tolist()))
        # Tokenizers that normalise text cannot give it back letter for letter; then both sides go the same way.
        if _squash(content) in shown or _squash(self.decode(self.encode(content))) in shown:
            return
        raise InputError(
            f"The masked tokens of a row decode to {self.decode(tokens.tolist())[:200]!r}, which does not hold the assistant's text "
            f"{content[:200]!r}: the chat template of {self._folder} changes answers. For reasoning, set data.strip_reasoning=true."
        )


def _roles(messages: Messages) -> list[str]:
    return [str(turn.get("role")) for turn in messages]


def _check_row(messages: Messages) -> None:
    """Raise `InputError` unless every turn has a role and text, and one of them is the assistant's."""
    for number, turn in enumerate(messages, 1):
        for key in ("role", "content"):
            if not isinstance(turn.get(key), str):
                raise InputError(f"Turn {number} of a row has {key}={turn.get(key)!r}. Allowed: text under both 'role' and 'content'.")
    if "assistant" not in _roles(messages):
        raise InputError(
            f"A row has no assistant turn: its roles are {_roles(messages)}. Each training row needs a turn with role 'assistant'."
        )
