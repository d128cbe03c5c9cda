"""The parts of an answer: its reasoning and its fenced code. Pure text work, one reading of them for training rows and for the judge."""

import re
import textwrap
from dataclasses import dataclass

_REASONING = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),  # Gemma 4
)
"""How families write their reasoning into the content: opening and closing."""
_RUN = re.compile(r"`{3,}|^[ \t]*~{3,}", re.MULTILINE)
_MODULE = re.compile(r"\b(?:macro)?module\b")
_QUOTES = "`\"'\u201c\u201d\u2018\u2019"


@dataclass(frozen=True)
class Block:
    """One fenced block of code."""

    start: int
    end: int
    """Where it stands in its text, fences included."""
    fence: str
    language: str
    """What follows the opening on its line, or empty."""
    code: str
    closed: bool
    """Whether its closing fence is there."""
    inline: bool
    """Whether it opens and closes on one line."""

    @property
    def text(self) -> str:
        """The block with both fences on lines of their own."""
        return f"{self.fence}{self.language}\n{self.code}\n{self.fence}"


def code_blocks(text: str) -> tuple[Block, ...]:
    """Return the fenced blocks of `text` in order, those without code left out.

    Fences may stand behind text on their line, be glued to the code, or never be closed. A fence with a language alone on its line
    opens a block also where one is open: the closing fence was forgotten.
    """
    blocks: list[Block] = []
    runs = [(found.start(), found.end(), found.group().strip()) for found in _RUN.finditer(text)]
    index = 0
    while index < len(runs):
        start, inside, fence = runs[index]
        closing = next((at for at in range(index + 1, len(runs)) if runs[at][2].startswith(fence)), None)
        end = runs[closing][0] if closing is not None else len(text)
        reopened = closing is not None and len(runs[closing][2]) == len(fence) and _opens(text, runs[closing])
        closed = closing is not None and not reopened
        block = _block(text, start, end, inside, fence, runs[closing][1] if closing is not None and closed else end, closed)
        if block.code.strip():
            blocks.append(block)
        index = len(runs) if closing is None else closing if reopened else closing + 1
    return tuple(blocks)


def _opens(text: str, run: tuple[int, int, str]) -> bool:
    """Whether a fence stands at the beginning of its line with one word, its language, behind it."""
    begin = text.rfind("\n", 0, run[0]) + 1
    line = text[run[1] :].split("\n", 1)[0]
    return not text[begin : run[0]].strip() and re.fullmatch(r"[A-Za-z][\w+#.-]*\s*", line) is not None


def _block(text: str, start: int, end: int, inside: int, fence: str, stop: int, closed: bool) -> Block:
    body = text[inside:end].replace("\r\n", "\n").replace("\r", "\n")
    first, newline, rest = body.partition("\n")
    inline = not newline
    module = _MODULE.search(first)
    if module:
        language, code = first[: module.start()].strip(), first[module.start() :] + newline + rest
    elif inline:
        language, code = "", first
    else:
        language, code = first.strip(), rest
    indent = text[text.rfind("\n", 0, start) + 1 : start]
    if indent and not indent.strip():
        code = textwrap.dedent(code)
    return Block(start, stop, fence, language, code.rstrip().strip("\n"), closed, inline)


def strip_reasoning(text: str) -> str:
    """Remove the reasoning that stands in `text`.

    Reasoning that opens the text ends at its closing, or never; a closing without an opening reaches back to the beginning, as the
    opening may stand in the prompt. Marks inside code or quotes, or in the middle of a sentence, are text and stay.
    """
    for opening, closing in _REASONING:
        if opening in text or closing in text:
            text = _strip(text, opening, closing)
    return text.strip()


def _strip(text: str, opening: str, closing: str) -> str:
    while True:
        lead = len(text) - len(text.lstrip())
        if text.startswith(opening, lead):
            closings = _marks(text, closing, lead + len(opening), sentence=False) or _anywhere(text, closing, lead + len(opening))
            if not closings:
                return ""
            text = text[closings[0] + len(closing) :]
            continue
        closings = _marks(text, closing, 0, sentence=True)
        if not closings:
            return text
        openings = [at for at in _marks(text, opening, 0, sentence=True) if at < closings[0]]
        text = (text[: openings[-1]] if openings else "") + text[closings[0] + len(closing) :]


def _anywhere(text: str, mark: str, begin: int) -> list[int]:
    """Positions of `mark` also inside fences: a thought may leave a fence open. Quoted ones are text there too."""
    return [at for at in _found(text, mark, begin) if not _quoted(text, at, at + len(mark))]


def _marks(text: str, mark: str, begin: int, *, sentence: bool) -> list[int]:
    """Positions of `mark` from `begin` that are marks and not text."""
    code = [(block.start, block.end) for block in code_blocks(text) if block.closed and block.start >= begin]
    return [
        at
        for at in _found(text, mark, begin)
        if not any(start <= at < end for start, end in code)
        and not _quoted(text, at, at + len(mark))
        and not (sentence and _in_sentence(text, at, at + len(mark)))
    ]


def _found(text: str, mark: str, begin: int) -> list[int]:
    return [found.start() for found in re.finditer(re.escape(mark), text) if found.start() >= begin]


def _quoted(text: str, start: int, end: int) -> bool:
    """Whether a quote or an inline code span that opens on the line of the mark holds it."""
    line = (text[text.rfind("\n", 0, start) + 1 : start], text[end:].split("\n", 1)[0])
    before, after = (_RUN.sub(" ", part) for part in line)
    if before[-1:] and after[:1] and before[-1] in _QUOTES and after[0] in _QUOTES:
        return True
    return any(before.count(quote) % 2 == 1 and quote in after for quote in '`"')


def _in_sentence(text: str, start: int, end: int) -> bool:
    """Whether words of one line stand before and behind the mark, apart from it: `the token </think> ends a thought`."""
    before, after = text[text.rfind("\n", 0, start) + 1 : start], text[end:].split("\n", 1)[0]
    return bool(before.strip()) and before[-1:] in (" ", "\t", "(") and bool(after.strip()) and after[0] in " \t,.;:!?)"
