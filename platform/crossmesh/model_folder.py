"""What a model folder says to those who write its prompts and to those who serve it: its chat template. The one reader of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crossmesh.errors import InputError, reading
from crossmesh.files import read_json

TEMPLATE_FILE = "chat_template.jinja"
TOKENIZER_CONFIG = "tokenizer_config.json"


def tokenizer_config(folder: Path) -> dict[str, Any]:
    """`tokenizer_config.json`; empty where there is none."""
    file = folder / TOKENIZER_CONFIG
    with reading(file, "a JSON object"):
        return {**read_json(file)} if file.is_file() else {}


def template_of(folder: Path) -> str | None:
    """The chat template: that of `chat_template.jinja`, or else the default one of `tokenizer_config.json`.

    None when neither has one. An empty one is none: nothing that a conversation says would reach the model.
    """
    file = folder / TEMPLATE_FILE
    if file.is_file():
        with reading(file, "a Jinja template in UTF-8"):
            found: Any = file.read_text(encoding="utf-8")
    else:
        with reading(folder / TOKENIZER_CONFIG, "a JSON object"):
            found = _default(tokenizer_config(folder))
    return found if isinstance(found, str) and found.strip() else None


def chat_template(folder: Path) -> str:
    """The same. Raises `InputError` when there is none."""
    found = template_of(folder)
    if found is None:
        raise InputError(
            f"{folder} has no chat template, or an empty one. Needed: {TEMPLATE_FILE}, or chat_template in {TOKENIZER_CONFIG}. "
            "Base models often come without one: use the instruction-tuned variant, or put a template file beside the tokenizer."
        )
    return found


def _default(config: Mapping[str, Any]) -> Any:
    found = config.get("chat_template")
    return {entry["name"]: entry["template"] for entry in found}.get("default") if isinstance(found, list) else found
