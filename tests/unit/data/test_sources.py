import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crossmesh.config.training import DataSpec, RtlSpec
from crossmesh.data.chat import ChatTokenizer
from crossmesh.data.conversation import Conversation, message
from crossmesh.data.sources import clean, encode_rows, load_conversations, load_rows
from crossmesh.errors import InputError

Make = Callable[..., ChatTokenizer]

RECORDS = [{"prompt": f"Question {number}?", "response": f"Answer {number}.", "extra": number} for number in range(5)]


def jsonl(path: Path, records: list[Any]) -> str:
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n")
    return str(path)


def test_options_change_assistant_turns_only() -> None:
    row = [message("user", "<think>mine</think> go"), message("assistant", "<think>t</think>```v\nx\n```")]
    cleaned = clean(Conversation(row), DataSpec(strip_reasoning=True, answer_fence=True, system_prompt="Be brief."))
    assert cleaned.messages == [message("system", "Be brief."), row[0], message("assistant", "```v\nx\n```")]
    own = [message("system", "Own."), *row]
    assert clean(Conversation(own), DataSpec(system_prompt="Be brief.")).messages == own


def test_jsonl_and_parquet_give_the_same_rows(tmp_path: Path, make_tokenizer: Make) -> None:
    tokenizer = make_tokenizer()
    pq.write_table(pa.Table.from_pylist(RECORDS), tmp_path / "rows.parquet")
    first = load_rows(DataSpec(source=jsonl(tmp_path / "rows.jsonl", RECORDS)), tokenizer, tmp_path)
    second = load_rows(DataSpec(source=str(tmp_path / "rows.parquet")), tokenizer, tmp_path)
    assert first.digest == second.digest
    assert [row.id for row in first.rows] == [row.id for row in second.rows]
    assert len({row.id for row in first.rows}) == 5
    assert first.lengths.count == 5


def test_messages_column_and_other_columns(tmp_path: Path) -> None:
    turns = [message("user", "hi"), message("assistant", "yes"), message("user", "more"), message("assistant", "no")]
    source = jsonl(tmp_path / "chat.jsonl", [{"chat": turns, "q": "hi", "a": "yes"}])
    assert [one.messages for one in load_conversations(DataSpec(source=source, messages_column="chat"), tmp_path)] == [turns]
    columns = DataSpec(source=source, prompt_column="q", response_column="a")
    assert [one.messages for one in load_conversations(columns, tmp_path)] == [turns[:2]]


def test_prompt_may_be_a_list_of_messages(tmp_path: Path) -> None:
    pq.write_table(
        pa.Table.from_pylist([{"prompt": [message("system", "s"), message("user", "u")], "response": "r"}]), tmp_path / "r.parquet"
    )
    rows = load_conversations(DataSpec(source=str(tmp_path / "r.parquet")), tmp_path)
    assert [row.messages for row in rows] == [[message("system", "s"), message("user", "u"), message("assistant", "r")]]


def test_max_rows_takes_the_first(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "rows.jsonl", RECORDS)
    rows = load_conversations(DataSpec(source=source, max_rows=2), tmp_path)
    assert [row.messages[0]["content"] for row in rows] == [
        "Question 0?",
        "Question 1?",
    ]


def test_long_and_empty_rows_are_dropped_and_counted(tmp_path: Path, make_tokenizer: Make) -> None:
    records = [*RECORDS, {"prompt": "long", "response": "word " * 200}, {"prompt": "p", "response": " "}, {"prompt": None, "response": "r"}]
    dataset = load_rows(DataSpec(source=jsonl(tmp_path / "rows.jsonl", records), max_length=64), make_tokenizer(), tmp_path)
    assert (len(dataset.rows), dataset.dropped_long, dataset.dropped_empty) == (5, 1, 2)
    assert max(len(row.tokens) for row in dataset.rows) <= 64 < dataset.lengths.longest
    assert dataset.lengths.count == 6


def test_a_row_exactly_at_the_limit_is_kept(make_tokenizer: Make) -> None:
    tokenizer = make_tokenizer()
    row = Conversation([message("user", "hi"), message("assistant", "yes")])
    length = len(tokenizer.encode(tokenizer.render(row.messages)))
    assert encode_rows([row], tokenizer, length).dropped_long == 0
    with pytest.raises(InputError, match=f"max_length={length - 1} is below the shortest row, which has {length} tokens"):
        encode_rows([row], tokenizer, length - 1)


def test_a_row_whose_mask_is_all_zero_is_named(make_tokenizer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer()
    rows = [Conversation([message("user", str(number)), message("assistant", "yes")], place=f"line {number + 1}") for number in range(3)]
    (good,) = tokenizer.encode_row(rows[0])
    first_only = np.arange(len(good.tokens)) == 0
    encoded = iter([(good,), (replace(good, loss_mask=first_only),)])
    monkeypatch.setattr(tokenizer, "encode_row", lambda turns: next(encoded))
    with pytest.raises(InputError, match="line 2 has no token that carries loss: its mask is all zero"):
        encode_rows(rows, tokenizer, 64)


def test_digest_depends_on_content_order_and_template(make_tokenizer: Make, tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    rows = [Conversation([message("user", str(number)), message("assistant", "yes")], place=f"line {number + 1}") for number in range(3)]
    digest = encode_rows(rows, tokenizer, 64).digest
    assert encode_rows(rows, tokenizer, 64).digest == digest
    assert encode_rows(rows[::-1], tokenizer, 64).digest != digest
    assert encode_rows(rows[:2], tokenizer, 64).digest != digest
    template = tmp_path / "tokenizer" / "chat_template.jinja"
    template.write_text(template.read_text().replace("'assistant\n'", "'assistant\n'").replace("{{ bos_token }}", ""))
    assert encode_rows(rows, ChatTokenizer(tmp_path / "tokenizer"), 64).digest != digest


def test_rtl_is_a_source(tmp_path: Path, make_tokenizer: Make) -> None:
    data = DataSpec(source="rtl", rtl=RtlSpec(train_rows=32), max_length=2048)
    dataset = load_rows(data, make_tokenizer(), tmp_path)
    assert (len(dataset.rows), dataset.dropped_long, dataset.dropped_empty) == (32, 0, 0)
    row = load_conversations(data, tmp_path)[0].messages
    assert [turn["role"] for turn in row] == ["user", "assistant"]
    assert row[1]["content"].startswith("```verilog\nmodule ")
    assert row[1]["content"].endswith("endmodule\n```")


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (['{"prompt": "p", "response": "r"}', "", "{broken"], r"rows\.jsonl, line 3 is not JSON"),
        (['{"prompt": "p", "response": "r"}', "[1]"], r"rows\.jsonl, line 2 is a JSON list"),
        (['{"prompt": "p", "respones": "r"}'], r"line 1 has no column 'response'.*Did you mean 'respones'"),
        (['{"prompt": "p", "response": 7}'], r"line 1: column 'response' holds a int"),
        (['{"prompt": [{"speaker": "user", "text": "x"}], "response": "r"}'], r"role=None and keys speaker, text"),
        ([""], "has no rows"),
    ],
)
def test_bad_jsonl_is_named_by_line(tmp_path: Path, lines: list[str], complaint: str) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    with pytest.raises(InputError, match=complaint):
        load_conversations(DataSpec(source=str(tmp_path / "rows.jsonl")), tmp_path)


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"prompt": "\xff", "response": "r"}\n')
    with pytest.raises(InputError, match="line 1 is not JSON"):
        load_conversations(DataSpec(source=str(tmp_path / "rows.jsonl")), tmp_path)


def test_row_without_assistant_turn_is_named(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "chat.jsonl", [{"chat": [message("user", "a"), message("assistant", "b")]}, {"chat": [message("user", "a")]}])
    with pytest.raises(InputError, match=r"chat\.jsonl, line 2 has no assistant turn: its roles are \['user'\]"):
        load_conversations(DataSpec(source=source, messages_column="chat"), tmp_path)


def test_all_rows_empty(tmp_path: Path, make_tokenizer: Make) -> None:
    source = jsonl(tmp_path / "rows.jsonl", RECORDS)
    with pytest.raises(InputError, match=r"All 5 rows are empty.*data\.answer_fence"):
        load_rows(DataSpec(source=source, answer_fence=True), make_tokenizer(), tmp_path)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_conversations(DataSpec(source=str(tmp_path / "absent.jsonl")), tmp_path)
    (tmp_path / "rows.txt").write_text("prompt,response\n")
    with pytest.raises(InputError, match="unknown kind"):
        load_conversations(DataSpec(source=str(tmp_path / "rows.txt")), tmp_path)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(InputError, match=r"rows\.parquet cannot be read .* Needed: a whole \.parquet file"):
        load_conversations(DataSpec(source=str(tmp_path / "rows.parquet")), tmp_path)
    pq.write_table(pa.Table.from_pylist([{"question": "x"}]), tmp_path / "other.parquet")
    with pytest.raises(InputError, match=r"has no column 'prompt'\. It has: question"):
        load_conversations(DataSpec(source=str(tmp_path / "other.parquet")), tmp_path)


def test_damage_that_shows_while_rows_are_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"prompt": ["a"] * 3000, "response": ["b"] * 3000}), file)
    data = bytearray(file.read_bytes())
    data[20:60] = bytes(byte ^ 0xFF for byte in data[20:60])
    file.write_bytes(data)
    with pytest.raises(InputError, match=r"rows\.parquet cannot be read"):
        load_conversations(DataSpec(source=str(file)), tmp_path)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [('{"prompt": "\\ud800", "response": "b"}', "line 1 holds half of a surrogate pair"), ("[" * 100_000, "line 1 is not JSON")],
)
def test_rows_that_are_json_but_no_text(tmp_path: Path, line: str, complaint: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(InputError, match=complaint):
        load_conversations(DataSpec(source=str(file)), tmp_path)


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_conversations(DataSpec(source=f"/tmp/{'x' * 300}.jsonl"), tmp_path)
