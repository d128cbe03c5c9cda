"""The forms and files in which people keep rows: what each becomes, and the place that a message names."""

import bz2
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crossmesh.config.training import DataSpec
from crossmesh.data.conversation import message
from crossmesh.data.sources import load_conversations
from crossmesh.errors import InputError

ROWS = [{"prompt": f"Question {number}?", "response": f"Line one\nand, {number}"} for number in range(3)]
TURNS = [[message("user", row["prompt"]), message("assistant", row["response"])] for row in ROWS]


def load(path: Path, **other: Any) -> list[Any]:
    return [list(one.messages) for one in load_conversations(DataSpec(source=str(path), **other), path.parent)]


def lines(rows: list[dict[str, Any]] = ROWS) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def table(separator: str) -> bytes:
    cells = [["prompt", "response"], *([row["prompt"], f'"{row["response"]}"'] for row in ROWS)]
    return "".join(separator.join(row) + "\r\n" for row in cells).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("r.jsonl", lines()),
        ("r.ndjson", b"\xef\xbb\xbf" + lines()),
        ("r.json", json.dumps(ROWS).encode()),
        ("r.json", json.dumps(ROWS, indent=2).encode()),
        ("r.json", json.dumps({"version": 1, "data": ROWS}).encode()),
        ("r.json", lines()),
        ("r.jsonl.gz", gzip.compress(lines(), mtime=0)),
        ("r.json.gz", gzip.compress(json.dumps(ROWS).encode(), mtime=0)),
        ("r.jsonl.bz2", bz2.compress(lines())),
        ("r.jsonl.xz", lzma.compress(lines())),
        ("r.jsonl.zst", pa.compress(lines(ROWS[:1]), "zstd", asbytes=True) + pa.compress(lines(ROWS[1:]), "zstd", asbytes=True)),
        ("r.csv", table(",")),
        ("r.csv", b"\xef\xbb\xbf" + table(";").replace(b"and, ", b"and, ")),
        ("r.tsv", table("\t")),
        ("r.csv.gz", gzip.compress(table(","), mtime=0)),
    ],
)
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert load(tmp_path / name) == TURNS


def test_arrow_and_parquet(tmp_path: Path) -> None:
    rows = pa.Table.from_pylist(ROWS)
    with pa.ipc.new_stream(str(tmp_path / "r.arrow"), rows.schema) as writer:
        writer.write_table(rows)
    pq.write_table(rows, tmp_path / "r.parquet")
    assert load(tmp_path / "r.arrow") == load(tmp_path / "r.parquet") == TURNS


def test_folders_and_patterns(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{'abc'[number]}.jsonl").write_bytes(lines(ROWS[number : number + 1]))
    (tmp_path / "README.md").write_text("words")
    assert load(tmp_path) == load(tmp_path / "*.jsonl") == TURNS
    assert load(tmp_path / "[ab].jsonl") == TURNS[:2]
    (tmp_path / "train.jsonl").write_bytes(lines(ROWS[:1]))
    (tmp_path / "test.jsonl").write_bytes(lines(ROWS[1:]))
    assert load(tmp_path) == TURNS[:1]
    assert load(tmp_path, split="test") == TURNS[1:]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="folder without data files"):
        load(tmp_path / "empty")


PAIR = [message("user", "q"), message("assistant", "a")]


@pytest.mark.parametrize(
    ("row", "turns", "said"),
    [
        (
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "id": "x"},
            PAIR,
            "messages from column 'conversations'",
        ),
        (
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "system": "s"},
            [message("system", "s"), *PAIR],
            "messages from column 'conversations'",
        ),
        ({"messages": PAIR, "prompt": "q", "prompt_id": "1"}, PAIR, "messages from column 'messages'"),
        ({"messages": json.dumps(PAIR)}, PAIR, "messages from column 'messages'"),
        ({"instruction": "q", "input": "", "output": "a"}, PAIR, "Alpaca: instruction, input and output"),
        (
            {"instruction": "q", "input": "x", "output": "a", "history": [["h", "i"]], "system": "s"},
            [message("system", "s"), message("user", "h"), message("assistant", "i"), message("user", "q\n\nx"), PAIR[1]],
            "Alpaca: instruction, input and output",
        ),
        ({"instruction": "q", "output": "a"}, PAIR, "Alpaca: instruction, input and output"),
        ({"prompt": "q", "completion": "a"}, PAIR, "prompts from column 'prompt', answers from column 'completion'"),
        ({"prompt": PAIR[:1], "completion": PAIR[1:]}, PAIR, "prompts from column 'prompt', answers from column 'completion'"),
        ({"question": "q", "answer": "a", "level": 3}, PAIR, "prompts from column 'question', answers from column 'answer'"),
        ({"prompt": "q", "response": "a"}, PAIR, ""),
    ],
)
def test_known_forms_are_found_and_said(tmp_path: Path, row: dict[str, Any], turns: list[Any], said: str) -> None:
    (tmp_path / "r.jsonl").write_bytes(lines([row]))
    (found,) = load_conversations(DataSpec(source=str(tmp_path / "r.jsonl")), tmp_path)
    assert (list(found.messages), found.form) == (turns, said)


def test_tool_turns_of_sharegpt(tmp_path: Path) -> None:
    turns = [
        {"from": "human", "value": "q"},
        {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
        {"from": "observation", "value": "r"},
        {"from": "gpt", "value": "a", "weight": 1},
    ]
    (tmp_path / "r.jsonl").write_bytes(lines([{"conversations": turns}]))
    (found,) = load(tmp_path / "r.jsonl")
    assert [turn["role"] for turn in found] == ["user", "assistant", "tool", "assistant"]
    assert found[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("r.json", b'[\n{"prompt": "p", "response": "r"},\n{"prompt": "p"}\n]', r"r\.json, line 3 has no column 'response'"),
        ("r.json", b'[\n{"prompt": "p", "response": "r"},\n{"prompt" "p"}\n]', r"r\.json, line 3: the row that begins here is not JSON"),
        ("r.json", b'[\n{"prompt": "p", "response": "r"}', r"r\.json, line 2: the row that begins here is not JSON"),
        ("r.json", b'[{"prompt": "p", "response": "r"}] x', r"goes on behind the end of its list: 'x'"),
        ("r.json", b'{"prompt": ["p", "p"], "response": ["r", "r"]}', r"holds columns and not rows. Convert it: python -c"),
        ("r.csv", b"prompt,response\np,r\n\np,r,x\n", r"r\.csv, line 4 has 3 cells, and the heading has 2"),
        ("r.csv", b'prompt,response\np,"r\ns"\np,"r', r"r\.csv, line 4 cannot be read"),
        ("r.csv", b"prompt,prompt\np,r\n", r"r\.csv, line 1 is not a heading"),
        ("r.jsonl.gz", gzip.compress(lines(), mtime=0)[:-12], r"r\.jsonl\.gz cannot be read"),
        ("r.jsonl.zst", pa.compress(lines(), "zstd", asbytes=True)[:-5], r"r\.jsonl\.zst cannot be read"),
        ("r.jsonl", b'{"conversations": [{"from": "alien", "value": "q"}]}', r"line 1, column 'conversations': a turn is from='alien'"),
        ("r.jsonl", b'{"prompt": "p", "chosen": "a", "rejected": "b"}', r"data\.response_column=chosen\) to train on what was chosen"),
        ("r.jsonl", b'{"question": "p", "prompt": "p", "answer": "a", "output": "b"}', r"line 1 has no column 'response'"),
        ("r.xlsx", b"PK", r"unknown kind: r\.xlsx. Convert it: python -c .*data\.source=rows\.jsonl"),
        ("r.tar.gz", b"x", r"unknown kind: r\.tar\.gz. Convert it: python -m tarfile -e"),
    ],
)
def test_messages_name_file_and_line(tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=complaint):
        load(tmp_path / name)


def test_columns_that_the_spec_names_are_the_ones(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_bytes(lines([{"messages": PAIR, "q": "other", "a": "b"}]))
    assert load(tmp_path / "r.jsonl", prompt_column="q", response_column="a") == [[message("user", "other"), message("assistant", "b")]]
    with pytest.raises(InputError, match="no column 'quest'"):
        load(tmp_path / "r.jsonl", prompt_column="quest", response_column="a")
