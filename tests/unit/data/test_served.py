"""Before any training: ids the embedding has rows for, ends that serving stops at, not too many rows dropped, one date."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from crossmesh.config.training import DataSpec
from crossmesh.data.chat import ChatTokenizer
from crossmesh.data.conversation import Conversation, message
from crossmesh.data.served import check_dropped, check_vocabulary, notes, serving_stops, unserved_stops
from crossmesh.data.sources import encode_rows
from crossmesh.data.template_date import fixed_date
from crossmesh.errors import InputError

Make = Callable[..., ChatTokenizer]

ROW = Conversation([message("user", "a"), message("assistant", "b")], place="line 1")
DATED = (
    "{{ strftime_now('%d %b %Y') }}{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def with_stops(folder: Path, name: str, stops: object) -> Path:
    (folder / name).write_text(json.dumps({"eos_token_id": stops}))
    return folder


def test_an_id_beyond_the_embedding_is_refused(make_tokenizer: Make, tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    data = encode_rows([ROW], tokenizer, 64)
    folder = with_stops(tmp_path / "tokenizer", "config.json", None)
    largest = max(int(row.tokens.max()) for row in data.rows)
    check_vocabulary(data, folder, tokenizer, largest + 1)
    with pytest.raises(InputError, match=rf"no embedding for: {largest} .*its vocabulary has {largest} \(0 to {largest - 1}\)"):
        check_vocabulary(data, folder, tokenizer, largest)


def test_an_end_that_a_server_does_not_stop_at_is_named(make_tokenizer: Make, tmp_path: Path) -> None:
    make_tokenizer()
    folder = tmp_path / "tokenizer"
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": "<eos>"}))
    tokenizer = ChatTokenizer(folder)
    data = encode_rows([ROW], tokenizer, 64)
    (end,) = data.stop_ids
    assert tokenizer.decode([end]) == "<|end|>"
    with_stops(folder, "config.json", 1)
    assert unserved_stops(data, folder, tokenizer) == (end,)
    (said,) = notes(data, tokenizer, "", (end,))
    assert f"answers end with token {end} ('<|end|>')" in said
    with_stops(folder, "generation_config.json", [1, end])
    assert unserved_stops(data, folder, tokenizer) == ()
    assert serving_stops(folder, tokenizer) == {1, end}


@pytest.mark.parametrize(
    ("told", "common"),
    [
        ([{"style": "short"}, {"style": "short"}], {"style": "short"}),
        ([{"style": "short"}, {"style": "long"}], {}),
        ([{"style": "short"}, {}], {}),
        ([{"style": "short", "unknown": 1}] * 2, {"style": "short"}),
        ([{"style": "short", "tools": [{"name": "f"}]}] * 2, {"style": "short"}),
    ],
)
def test_variables_that_all_rows_give_the_template_are_known(
    make_tokenizer: Make, told: list[dict[str, object]], common: dict[str, object]
) -> None:
    tokenizer = make_tokenizer("{{ style }}{{ tools }}" + DATED.partition("}}")[2])
    rows = [Conversation(ROW.messages, place=f"line {index}", context=context) for index, context in enumerate(told)]
    assert encode_rows(rows, tokenizer, 256).template_kwargs == common


@pytest.mark.parametrize(("allowed", "stops"), [(0.0, True), (0.01, True), (0.5, False), (1, True), (2, False)])
def test_more_dropped_rows_than_allowed_stop_the_job(make_tokenizer: Make, allowed: float, stops: bool) -> None:
    empty = [Conversation([message("user", "a"), message("assistant", "")], place=f"rows.jsonl, line {number}") for number in (2, 3)]
    data = encode_rows([ROW, ROW, *empty], make_tokenizer(), 64)
    spec = DataSpec(max_dropped=allowed)
    if not stops:
        check_dropped(data, spec)
        return
    complaint = r"2 of 4 rows would be dropped.*2 x an answer without content \(rows\.jsonl, line 2, rows\.jsonl, line 3\).*max_dropped=2\."
    with pytest.raises(InputError, match=complaint):
        check_dropped(data, spec)


def test_the_date_is_fixed_once(make_tokenizer: Make, tmp_path: Path) -> None:
    make_tokenizer(DATED)
    first = fixed_date(DataSpec(), "digest", tmp_path / "dates")
    (kept,) = (tmp_path / "dates").iterdir()
    kept.write_text(json.dumps({"date": "2020-02-29T10:00"}))  # As if that had been years ago.
    assert len(first) == len("2020-02-29T10:00")
    assert fixed_date(DataSpec(max_dropped=3), "digest", tmp_path / "dates") == "2020-02-29T10:00"
    assert fixed_date(DataSpec(template_date="2026-12-02"), "digest", tmp_path / "dates") == "2026-12-02"
    tokenizer = ChatTokenizer(tmp_path / "tokenizer", "2020-02-29T10:00")
    assert tokenizer.render([message("user", "a")]).startswith("29 Feb 2020")
    (said,) = notes(encode_rows([ROW], tokenizer, 64), tokenizer, tokenizer.template_date)
    assert "2020-02-29T10:00" in said


def test_a_date_that_is_none_is_refused() -> None:
    with pytest.raises((InputError, ValueError), match=r"data\.template_date='tomorrow'"):
        DataSpec(template_date="tomorrow")
