"""A small tokenizer whose chat template a test may replace."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from crossmesh.data.chat import ChatTokenizer

TINY = Path(__file__).resolve().parents[3] / "platform" / "crossmesh" / "models" / "tiny_tokenizer"


@pytest.fixture
def make_tokenizer(tmp_path: Path) -> Callable[..., ChatTokenizer]:
    """Return a function that makes the tiny tokenizer with another template, and with tokens trimmed as Llama 3's are."""

    def make(template: str | None = None) -> ChatTokenizer:
        folder = tmp_path / "tokenizer"
        shutil.copytree(TINY, folder)
        if template is not None:
            (folder / "chat_template.jinja").write_text(template)
        state = json.loads((folder / "tokenizer.json").read_text())
        state["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        (folder / "tokenizer.json").write_text(json.dumps(state))
        return ChatTokenizer(folder)

    return make
