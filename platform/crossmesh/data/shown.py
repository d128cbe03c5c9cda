"""Training rows as a person reads them: the text of their tokens, told apart by whether it is learned. It opens and writes no file."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.text import Text

from crossmesh.data.batches import Row
from crossmesh.data.chat import ChatTokenizer

_STYLES = {True: "bold green", False: "bright_black"}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Rows of {source}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1f2937; background: #fff }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid #d1d5db; border-radius: 6px; padding: 1rem; color: #6b7280 }}
mark {{ color: #14532d; background: #bbf7d0 }}
</style></head><body>
<h1>Rows of {source}</h1>
<p><mark>Learned</mark>: these tokens carry loss. The rest is the prompt.</p>
{rows}
</body></html>
"""


@dataclass(frozen=True)
class Segment:
    """Tokens in a row that are all learned, or none of them."""

    text: str
    count: int
    learned: bool


def segments(row: Row, tokenizer: ChatTokenizer) -> tuple[Segment, ...]:
    """Split a row where learning begins and ends."""
    ends = [*(np.flatnonzero(row.loss_mask[1:] != row.loss_mask[:-1]) + 1).tolist(), len(row.tokens)]
    begins = [0, *ends[:-1]]
    return tuple(
        Segment(tokenizer.decode(row.tokens[begin:end].tolist()), end - begin, bool(row.loss_mask[begin]))
        for begin, end in zip(begins, ends, strict=True)
    )


def _heading(number: int, name: str, parts: Sequence[Segment]) -> str:
    learned = sum(part.count for part in parts if part.learned)
    return f"row {number} ({name}): {sum(part.count for part in parts)} tokens, {learned} learned"


def terminal(rows: Sequence[tuple[str, Sequence[Segment]]]) -> Text:
    """Return rows, by id and segments, for a terminal: learned in green, prompts gray."""
    text = Text()
    for number, (name, parts) in enumerate(rows, 1):
        text.append(f"{_heading(number, name, parts)}\n", "bold")
        for part in parts:
            text.append(_visible(part.text), _STYLES[part.learned])
        text.append("\n\n")
    return text


def _visible(text: str) -> str:
    """Show control characters, which would steer a terminal, by their names."""
    return "".join(one if one in "\n\t" or one.isprintable() else f"\\u{ord(one):04x}" for one in text)


def page(source: str, rows: Sequence[tuple[str, Sequence[Segment]]]) -> str:
    """Return rows, by id and segments, as one HTML page that needs no other file."""
    shown = []
    for number, (name, parts) in enumerate(rows, 1):
        tokens = "".join(f"<mark>{html.escape(part.text)}</mark>" if part.learned else html.escape(part.text) for part in parts)
        shown.append(f"<h2>{html.escape(_heading(number, name, parts))}</h2>\n<pre>\n{tokens}</pre>")  # A first line break is dropped.
    return _PAGE.format(source=html.escape(source), rows="\n".join(shown))
