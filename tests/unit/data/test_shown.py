"""Rows as a person reads them."""

import re
from collections.abc import Callable

from crossmesh.data.chat import ChatTokenizer
from crossmesh.data.conversation import Conversation, message
from crossmesh.data.shown import page, segments, terminal


def test_what_is_learned_is_told_from_the_prompt(make_tokenizer: Callable[..., ChatTokenizer]) -> None:
    tokenizer = make_tokenizer()
    turns = [message("user", "1 < 2?"), message("assistant", "Yes <b>."), message("user", "more\x1b[2J"), message("assistant", "no")]
    (row,) = tokenizer.encode_row(Conversation(turns))
    parts = segments(row, tokenizer)
    assert "".join(part.text for part in parts) == tokenizer.decode(row.tokens.tolist())
    assert sum(part.count for part in parts) == len(row.tokens)
    learned = [part.text for part in parts if part.learned]
    assert [text.startswith(answer) for text, answer in zip(learned, ("Yes <b>.", "no"), strict=True)] == [True, True]
    assert sum(part.count for part in parts if part.learned) == int(row.loss_mask.sum())
    shown = terminal([(row.id, parts)])
    assert [str(span.style) for span in shown.spans if shown.plain[span.start : span.end] == learned[1]] == ["bold green"]
    assert "\x1b" not in shown.plain
    written = page("a<b>.jsonl", [(row.id, parts)])
    assert "<mark>Yes &lt;b&gt;." in written
    assert "a<b>" not in written
    assert not re.search(r"https?://|src=|href=", written)
