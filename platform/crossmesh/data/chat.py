"""Conversations to tokens with a loss mask on the answers, through the model's own template and tokenizer.

Needs tokenizers and jinja2 only, so the driver may use it; the tokens are those of transformers' `apply_chat_template`. What is
trained is what is served: each answer is learned behind the very tokens that a server sends for the same conversation
(`add_generation_prompt`). A template that renders earlier answers otherwise than it asked for them gives a row for each. It reads
no data files.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, processors

from crossmesh.data.batches import Row
from crossmesh.data.conversation import REASONING_KEYS, Conversation, Messages, row_id
from crossmesh.data.template import ChatTemplate
from crossmesh.errors import InputError, reading
from crossmesh.files import canonical_json, read_json
from crossmesh.model_folder import chat_template, tokenizer_config

_OPENED = re.compile(r"<(?P<tag>[A-Za-z_]\w*)>|<\|(?P<channel>[A-Za-z_]\w*)>")


@dataclass(frozen=True)
class _Answer:
    """One answer behind the prompt that a server sends for it."""

    tokens: npt.NDArray[np.int32]
    mask: npt.NDArray[np.bool_]
    stop: int
    """Index of the token that ends the answer; -1 when nothing of it is learned."""


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the named tokens (`bos_token`, `eos_token`, ...) that templates may refer to."""
    named = {**config, **extra} if isinstance(extra := config.get("extra_special_tokens"), dict) else dict(config)
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in named.items() if name.endswith("_token")}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _squash(text: str) -> str:
    return "".join(text.split())


def _closed(text: str) -> bool:
    """Whether what a generation prompt writes behind the header is complete: each tag that it opens is closed again."""
    closing = {"tag": "</{}>", "channel": "<{}|>"}
    return all(closing[found.lastgroup or "tag"].format(found[found.lastgroup or 0]) in text for found in _OPENED.finditer(text))


class ChatTokenizer:
    """The tokenizer and chat template of a local Hugging Face model folder."""

    def __init__(self, folder: Path, template_date: str = "") -> None:
        """Read `tokenizer.json`, `tokenizer_config.json` and the template. Raises `InputError` when one is missing.

        `template_date` (ISO 8601) is what a template is told when it asks for the date; empty: the clock.
        """
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if not (folder / name).is_file():
                raise InputError(f"{folder} has no {name}. Needed: a model folder with tokenizer.json and tokenizer_config.json.")
        config = tokenizer_config(folder)
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
        self.template_date = template_date
        now = datetime.fromisoformat(template_date) if template_date else None
        self.template = ChatTemplate(folder, chat_template(folder), self._named, now)

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added tokens included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def eos_id(self) -> int:
        """Id of the end-of-sequence token."""
        return self._named_id("eos_token")

    @property
    def has_eos(self) -> bool:
        """Whether the tokenizer names an end-of-sequence token."""
        return "eos_token" in self._named

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
        """Return the text of turns alone, as `ChatTemplate.render`."""
        return self.template.render(messages, {}, add_generation_prompt)

    def encode(self, text: str) -> list[int]:
        """Tokenize text that already holds its special tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of `tokens`, special tokens included."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))

    def encode_row(self, conversation: Conversation) -> tuple[Row, ...]:
        """Tokenize a conversation; the loss mask covers each learned answer and its end-of-turn token.

        Answers share a row as long as the later one's prompt begins with the tokens of the earlier ones, as a server would render it;
        otherwise there is a row for each. Raises `InputError` when the row has no assistant turn, when the template leaves out
        or changes what the row says, or when an answer's prompt cannot be the one that is served.
        """
        learned = conversation.learned
        if not any(turn["role"] == "assistant" for turn in conversation.messages):
            roles = [turn["role"] for turn in conversation.messages]
            raise InputError(f"{conversation.place} has no assistant turn: its roles are {roles}. Each training row needs one to learn.")
        if not learned:
            return ()
        self._check_rendered(conversation, learned[-1])
        rows: list[Row] = []
        current: _Answer | None = None
        before = learned[0]
        for index in learned:
            answer = self._answer(conversation, index)
            if answer.stop < 0:  # Its generation tags leave it out.
                continue
            ends = current.stop + 1 if current else 0
            if current and len(answer.tokens) >= ends and np.array_equal(answer.tokens[:ends], current.tokens[:ends]):
                answer.mask[:ends] |= current.mask[:ends]
            elif current:
                rows.append(self._row(conversation, before, current))
            current, before = answer, index
        return (*rows, self._row(conversation, before, current)) if current else ()

    def _row(self, conversation: Conversation, last: int, answer: _Answer) -> Row:
        part = replace(conversation, messages=conversation.messages[: last + 1])
        return Row(row_id(part), answer.tokens, answer.mask)

    def _check_rendered(self, conversation: Conversation, last: int) -> None:
        """Raise `InputError` when the template leaves out what changes the meaning of the row."""
        turns, context = conversation.messages[: last + 1], conversation.context
        text = self.template.render(turns, context)

        def refuse(what: str, remedy: str) -> InputError:
            return InputError(
                f"{conversation.place}: the chat template of {self._folder} leaves out {what}, so the model would "
                f"learn an answer to something that it does not see. {remedy}"
            )

        def changes(index: int, **other: Any) -> bool:
            turn = {key: value for key, value in {**turns[index], **other}.items() if value is not None}
            try:
                return self.template.render([*turns[:index], turn, *turns[index + 1 :]], context) != text
            except InputError:  # It looks at it, at least.
                return True

        for key in ("tools", "documents"):
            if key in context and self.template.render(turns, {**context, key: None}) == text:
                raise refuse(f"{key!r}", f"Use a model whose template renders {key}, or remove the key from the rows.")
        for index, turn in enumerate(turns):
            content, role = turn["content"], turn["role"]
            if role != "assistant" and content.strip() and content.strip() not in text and not changes(index, content="AqA"):
                raise refuse(f"the content of turn {index + 1} (role {role!r})", "Use a template that renders it, or remove the turn.")
            if "tool_calls" in turn and not changes(index, tool_calls=None):
                raise refuse(f"the tool_calls of turn {index + 1}", "Use a template that renders them, or remove these rows.")

    def _answer(self, conversation: Conversation, index: int) -> _Answer:
        """Tokenize answer `index` behind what a server sends when it is asked for."""
        turns, context = conversation.messages, conversation.context
        asked = self.template.render(turns[:index], context, add_generation_prompt=True)
        text = self.template.render(turns[: index + 1], context)
        span = self._content_span(conversation, index, text)
        learnable = self.template.generation_spans(turns[: index + 1], context, text) if self.template.has_generation else None
        shift = 0
        if not text.startswith(asked):
            head = self._header(conversation, index, asked, text, span)
            shift = len(asked) - head
            text = asked + text[head:]
        prompt, ids, offsets = self._tokens(asked, text, conversation)
        end = span[1] + shift if span else len(asked)
        stop = self._stop(text, ids, offsets, end, len(prompt), last="tool_calls" in turns[index] or span is None)
        positions = np.arange(len(ids))
        mask: npt.NDArray[np.bool_] = (positions >= len(prompt)) & (positions <= stop)
        if learnable is not None:
            inside = np.zeros(len(ids), np.bool_)
            for start, close in learnable:
                inside |= (offsets[:, 0] < close + shift) & (offsets[:, 1] > start + shift)
            mask &= inside
            if not mask.any():
                return _Answer(ids, mask, -1)
            if not mask[stop]:
                raise InputError(
                    f"The generation tags in the chat template of {self._folder} leave out the token that ends an answer, so "
                    "the model would not learn to stop. Put the end-of-turn token between {% generation %} and {% endgeneration %}."
                )
        else:
            self._verify(turns[index]["content"], ids[mask], conversation)
        return _Answer(ids, mask, stop)

    def _content_span(self, conversation: Conversation, index: int, text: str) -> tuple[int, int] | None:
        """Find the content of answer `index` in `text`, by rendering it with a placeholder in its place; None where it has none."""
        turns, context = conversation.messages[: index + 1], conversation.context
        content = turns[index]["content"]
        if not content.strip():
            return None
        placeholder = "AqA"
        while placeholder in canonical_json([list(map(dict, turns)), dict(context)]):
            placeholder += "q"
        probe = self.template.render([*turns[:index], {**turns[index], "content": placeholder}], context)
        head, tail = probe.find(placeholder), probe.rpartition(placeholder)[2]
        if probe.count(placeholder) != 1 or not text.endswith(tail):
            raise InputError(
                f"{conversation.place}: the chat template of {self._folder} does not copy assistant turn {index + 1} once and "
                "unchanged into its output, so the answer's tokens cannot be told from the rest. Use a template that does."
            )
        return (head if text.startswith(probe[:head]) else -1), len(text) - len(tail)

    def _header(self, conversation: Conversation, index: int, asked: str, text: str, span: tuple[int, int] | None) -> int:
        """Return where the answer begins in `text` when the server's prompt `asked` says more than a finished conversation holds.

        What a prompt adds must be complete in itself, as an empty thought is; then the answer is learned behind it.
        """
        turns = conversation.messages
        try:
            probe = self.template.render([*turns[:index], {"role": "assistant", "content": "AqA"}], conversation.context)
        except InputError:
            probe = ""
        head = probe.rfind("AqA")
        header, added = probe[:head], asked[max(head, 0) :]
        reasoned = any(turns[index].get(key) for key in REASONING_KEYS)
        fits = head >= 0 and asked.startswith(header) and text.startswith(header) and (span is None or span[0] in (head, -1))
        if fits and _closed(added) and not reasoned:
            return head
        finished = text[max(len(asked) - 120, 0) :][:240]
        raise InputError(
            f"{conversation.place}: answer {index + 1} would be trained behind another text than is served, under the chat "
            f"template of {self._folder}. A server sends ...{asked[-120:]!r}; a finished conversation reads ...{finished!r}. "
            "Set chat_template_kwargs in the rows (say, enable_thinking) so that both agree, or use a template in which they do."
        )

    def _tokens(self, asked: str, text: str, conversation: Conversation) -> tuple[list[int], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Return the prompt's tokens, and ids and offsets of the whole, which begins with exactly those."""
        prompt = self._tokenizer.encode(asked, add_special_tokens=False)
        whole = self._tokenizer.encode(text, add_special_tokens=False)
        ids, offsets = list(whole.ids), list(whole.offsets)
        if ids[: len(prompt.ids)] != prompt.ids:  # A token would join the end of the prompt with the beginning of the answer.
            rest = self._tokenizer.encode(text[len(asked) :], add_special_tokens=False)
            ids = [*prompt.ids, *rest.ids]
            offsets = [*prompt.offsets, *((start + len(asked), end + len(asked)) for start, end in rest.offsets)]
            if self.decode(ids) != self.decode(whole.ids):
                raise InputError(
                    f"{conversation.place}: the tokens of a prompt and its answer do not give the text that they are of under the "
                    f"tokenizer of {self._folder}: {self.decode(ids)[-200:]!r}, not {self.decode(whole.ids)[-200:]!r}."
                )
        return list(prompt.ids), np.asarray(ids, np.int32), np.asarray(offsets, np.int64).reshape(-1, 2)

    def _stop(self, text: str, ids: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64], end: int, first: int, *, last: bool) -> int:
        """Return the index of the special token that ends an answer whose content ends at character `end`.

        With `last` something of the answer may follow its content, as tool calls do: then it is the last special token.
        """
        special = np.asarray([int(token) in self._special_ids for token in ids], np.bool_)
        found = [int(place) for place in np.flatnonzero(special) if place >= first and offsets[place, 0] >= end]
        stop = (found[-1] if last else found[0]) if found else -1
        between = text[int(offsets[stop, 1]) :] if last else text[end : int(offsets[stop, 0])]
        if stop < 0 or between.strip():
            raise InputError(
                f"The chat template of {self._folder} ends an assistant turn without a special token, so a model trained on it would not "
                "learn to stop. Add the end-of-turn token after the answer in chat_template.jinja."
            )
        return stop

    def _verify(self, content: str, tokens: npt.NDArray[np.int32], conversation: Conversation) -> None:
        """Check that the masked tokens decode to the answer; white space is left aside, which templates trim."""
        shown = _squash(self.decode(tokens.tolist()))
        # Tokenizers that normalise text cannot give it back letter for letter; then both sides go the same way.
        if _squash(content) in shown or _squash(self.decode(self.encode(content))) in shown:
            return
        raise InputError(
            f"{conversation.place}: the masked tokens decode to {self.decode(tokens.tolist())[:200]!r}, which does not hold the "
            f"assistant's text {content[:200]!r}: the chat template of {self._folder} changes answers. For reasoning, set "
            "data.strip_reasoning=true."
        )


def unused_keys(tokenizer: ChatTokenizer, conversations: Sequence[Conversation]) -> dict[str, int]:
    """Return the keys of turns that the template leaves out, each with the number of rows in which it does.

    A key is used as soon as one rendering changes without it; reasoning, which templates render of some turns only, is held against
    every row.
    """
    counts: dict[str, int] = {}
    used: set[str] = set()
    for conversation in conversations:
        present = {key for turn in conversation.messages for key in turn} - {"role", "content"}
        options = {key for key in conversation.context if key not in ("tools", "documents")}
        for key in sorted((present | options) - used):
            beside = {name: value for name, value in conversation.context.items() if name != key}
            depends = any(_depends(tokenizer, conversation, key, beside, index + 1) for index in conversation.learned)
            if not depends:
                counts[key] = counts.get(key, 0) + 1
            elif key not in REASONING_KEYS or key in options:
                used.add(key)
    return {key: count for key, count in counts.items() if key not in used}


def _depends(tokenizer: ChatTokenizer, conversation: Conversation, key: str, beside: Mapping[str, Any], count: int) -> bool:
    """Whether the rendering of the first `count` turns changes without `key`."""
    turns = conversation.messages[:count]
    bare = [{name: value for name, value in turn.items() if name != key} for turn in turns]
    try:
        return tokenizer.template.render(bare, beside) != tokenizer.template.render(turns, conversation.context)
    except InputError:
        return True
