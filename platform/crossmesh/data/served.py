"""What is trained is what is served: token ids held against the model's vocabulary, ends of answers against where its server stops.

That each answer stands behind the prompt that a server sends is `chat.py`'s part. It reads small files of the model folder.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crossmesh.config.training import DataSpec
from crossmesh.data.chat import ChatTokenizer
from crossmesh.data.sources import TOO_LONG, Dataset
from crossmesh.errors import InputError, reading
from crossmesh.files import read_json

_NAMED = 12
"""So many keys and columns are named."""


def serving_stops(folder: Path, tokenizer: ChatTokenizer) -> frozenset[int]:
    """Ids at which vLLM ends an answer: the tokenizer's end of sequence, and those of generation_config.json or else of config.json."""
    named: list[Any] = [tokenizer.eos_id] if tokenizer.has_eos else []
    generation = folder / "generation_config.json"
    file = generation if generation.is_file() else folder / "config.json"
    with reading(file, "a JSON object"):
        config: Mapping[str, Any] = {**read_json(file)}
        for part in (config, config.get("text_config") or {}):
            found = part.get("eos_token_id")
            named += found if isinstance(found, list) else [found]
    return frozenset(token for token in named if isinstance(token, int))


def unserved_stops(data: Dataset, folder: Path, tokenizer: ChatTokenizer) -> tuple[int, ...]:
    """Ids that answers end with and a server of the model in `folder` does not stop at: what is trained is served with them."""
    return tuple(sorted({*data.stop_ids} - serving_stops(folder, tokenizer)))


def check_vocabulary(data: Dataset, folder: Path, tokenizer: ChatTokenizer, vocab: int) -> None:
    """Raise `InputError` when rows hold ids that the embedding has no row for.

    Args:
        data: the rows.
        folder: of the model.
        tokenizer: its tokenizer.
        vocab: rows of its embedding.
    """
    beyond = sorted({int(token) for row in data.rows for token in row.tokens[row.tokens >= vocab]})
    if beyond:
        shown = ", ".join(f"{token} ({tokenizer.decode([token])!r})" for token in beyond[:5])
        raise InputError(
            f"The rows hold token ids that {folder} has no embedding for: {shown}; its vocabulary has {vocab} (0 to {vocab - 1}). "
            "Tokens were added to the tokenizer and the embedding was not resized: resize it and save the model, or take the tokens out of "
            "the tokenizer."
        )


def check_dropped(data: Dataset, spec: DataSpec) -> None:
    """Raise `InputError` when more rows were dropped than `data.max_dropped` allows."""
    count = sum(one.count for one in data.dropped)
    total = count + len(data.rows)
    allowed = spec.max_dropped if spec.max_dropped >= 1 else spec.max_dropped * total
    if count > allowed:
        longest = f", or raise data.max_length={spec.max_length}" if any(one.reason == TOO_LONG for one in data.dropped) else ""
        raise InputError(
            f"{count} of {total} rows would be dropped, more than data.max_dropped={spec.max_dropped:g} allows: {dropped_text(data)}. "
            f"Repair the rows{longest}, or set data.max_dropped={count}."
        )


def dropped_text(data: Dataset) -> str:
    """Dropped rows by reason, with the first few places."""
    return "; ".join(
        f"{one.count} x {one.reason} ({', '.join(one.places)}{', ...' if one.count > len(one.places) else ''})" for one in data.dropped
    )


def _counted(keys: Mapping[str, int]) -> str:
    """Names with how many rows have each; of many the first."""
    shown = [f"{key!r} ({count:,} row{'s' if count > 1 else ''})" for key, count in sorted(keys.items())]
    more = len(shown) - _NAMED
    return ", ".join(shown) if more <= 0 else f"{', '.join(shown[:_NAMED])} and {more} more"


def notes(data: Dataset, tokenizer: ChatTokenizer, template_date: str, stops: tuple[int, ...] = ()) -> tuple[str, ...]:
    """What the person who trains on these rows should know."""
    said = list(data.forms)
    if data.dropped:
        count = sum(one.count for one in data.dropped)
        said.append(f"{count} of {count + len(data.rows)} rows dropped: {dropped_text(data)}")
    if data.unused:
        said.append(f"the chat template leaves out these keys of messages: {_counted(data.unused)}")
    if data.unread:
        said.append(f"these columns of the rows are not read: {_counted(data.unread)}")
    if tokenizer.template.uses_date:
        said.append(
            f"the chat template asks for the date: rows are rendered with {template_date}, and so is what the trained model is asked"
        )
    if stops:
        ends = ", ".join(f"{token} ({tokenizer.decode([token])!r})" for token in stops)
        said.append(f"answers end with token {ends}, at which a server of the base does not stop: the trained model is served with it")
    return tuple(said)
