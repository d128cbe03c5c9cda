"""What a row may hold: each key reaches the template, is honored, named or refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crossmesh.config.training import DataSpec
from crossmesh.data.chat import ChatTokenizer, unused_keys
from crossmesh.data.conversation import Conversation, message, read_turn
from crossmesh.data.served import notes
from crossmesh.data.sources import encode_rows, load_conversations
from crossmesh.errors import InputError

Make = Callable[..., ChatTokenizer]

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
TOOLS = [{"type": "function", "function": {"name": "weather"}}]
# Renders tools, calls and results, as Qwen's templates do.
TOOLED = (
    "{% if tools %}<|turn|>tools\n{{ tools | tojson }}<|end|>\n{% endif %}"
    "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
# As Qwen 3's: answers behind the last question keep their thought, earlier ones lose it.
THINKING = (
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|turn|>{{ m.role }}\n{% if m.role == 'assistant' and loop.index0 > ns.last %}<think>\n"
    "{{ m.reasoning_content | default('', true) }}\n</think>\n\n{% endif %}{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
# As Gemma 4's: results of tools are left out unless they answer a call by its id.
NO_RESULTS = TOOLED.replace("{{ m.content }}", "{% if m.role != 'tool' %}{{ m.content }}{% endif %}", 1)
NO_SYSTEM = TOOLED.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}", 1)

ASKED = message("user", "Oslo?")


def rows(tmp_path: Path, *records: dict[str, Any]) -> list[Conversation]:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps(record) for record in records))
    return load_conversations(DataSpec(source=str(file), messages_column="messages"), tmp_path)


def learned(tokenizer: ChatTokenizer, conversation: Conversation) -> list[str]:
    return [tokenizer.decode(row.tokens[row.loss_mask]) for row in tokenizer.encode_row(conversation)]


@pytest.mark.parametrize("arguments", [{"city": "Oslo"}, '{"city": "Oslo"}'])
def test_tools_and_calls_reach_the_template_and_calls_are_learned(make_tokenizer: Make, tmp_path: Path, arguments: Any) -> None:
    call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
    turns = [
        ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        message("tool", "4 C"),
        message("assistant", "It is 4 C."),
    ]
    tokenizer = make_tokenizer(TOOLED)
    (row,) = rows(tmp_path, {"messages": turns, "tools": TOOLS})
    assert learned(tokenizer, row) == ['[weather {"city": "Oslo"}]<|end|>It is 4 C.<|end|>']
    text = tokenizer.decode(tokenizer.encode_row(row)[0].tokens)
    assert '"name": "weather"' in text
    assert "tool\n4 C" in text


@pytest.mark.parametrize(
    ("template", "turns", "context", "complaint"),
    [
        (None, [ASKED, {"role": "assistant", "content": "x", "tool_calls": [CALL]}], {}, "leaves out the tool_calls of turn 2"),
        (None, [ASKED, message("assistant", "x")], {"tools": TOOLS}, "leaves out 'tools'"),
        (TOOLED, [ASKED, message("assistant", "x")], {"documents": [{"text": "t"}]}, "leaves out 'documents'"),
        (NO_RESULTS, [ASKED, message("tool", "4 C"), message("assistant", "x")], {}, r"leaves out the content of turn 2 \(role 'tool'\)"),
        (NO_SYSTEM, [message("system", "Be kind."), ASKED, message("assistant", "x")], {}, r"the content of turn 1 \(role 'system'\)"),
    ],
)
def test_what_a_template_leaves_out_is_refused(
    make_tokenizer: Make, template: str | None, turns: list[Any], context: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=f"rows.jsonl, line 7: the chat template of .* {complaint}"):
        make_tokenizer(template).encode_row(Conversation(turns, context, place="rows.jsonl, line 7"))


@pytest.mark.parametrize("mark", [{"weight": 0}, {"train": False}, {"weight": 0.0, "train": True}])
def test_an_answer_that_is_marked_is_not_learned(make_tokenizer: Make, tmp_path: Path, mark: dict[str, Any]) -> None:
    turns = [ASKED, {**message("assistant", "5"), **mark}, message("user", "No."), message("assistant", "4")]
    (row,) = rows(tmp_path, {"messages": turns})
    assert learned(make_tokenizer(), row) == ["4<|end|>"]


def test_a_row_of_which_nothing_is_learned_is_dropped_by_reason(make_tokenizer: Make, tmp_path: Path) -> None:
    good = {"messages": [ASKED, message("assistant", "b")]}
    muted = {"messages": [ASKED, {**message("assistant", "b"), "weight": 0}]}
    data = encode_rows(rows(tmp_path, muted, good, {**good, "train": False}, {"messages": None}, {"messages": []}), make_tokenizer(), 64)
    assert [(one.reason.split(" (")[0], one.count) for one in data.dropped] == [("no answer to learn", 2), ("no messages", 2)]
    assert data.dropped[0].places[1].endswith("rows.jsonl, line 3")
    assert len(data.rows) == 1


@pytest.mark.parametrize(
    ("turn", "complaint"),
    [
        ({"role": "assistant", "content": "x", "weight": 0.5}, r"weight=0\.5\. Allowed: 0 or false"),
        ({"role": "user", "content": "x", "weight": 1}, "Only assistant turns are learned"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, "content part of type 'image_url'. Only text"),
        ({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{bro"}}]}, "are not JSON"),
        ({"role": "user"}, "has no 'content'"),
        ({"content": "x"}, "role=None"),
    ],
)
def test_what_cannot_be_honored_is_refused(turn: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=f"line 3: .*{complaint}"):
        read_turn(turn, "line 3")


def test_text_parts_are_joined_and_nulls_left_out() -> None:
    turn = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": None, "tool_calls": None}
    assert read_turn(turn, "line 1") == ({"role": "user", "content": "a\nb"}, True)


def test_blank_turns_beside_the_answer_do_not_drop_a_row(make_tokenizer: Make, tmp_path: Path) -> None:
    blank = {"messages": [message("system", ""), ASKED, message("assistant", "b")]}
    result = {
        "messages": [ASKED, {"role": "assistant", "content": "", "tool_calls": [CALL]}, message("tool", ""), message("assistant", "b")]
    }
    data = encode_rows(rows(tmp_path, blank, result), make_tokenizer(TOOLED), 200)
    assert (len(data.rows), data.dropped) == (2, ())


def test_keys_that_no_rendering_depends_on_are_counted(make_tokenizer: Make, tmp_path: Path) -> None:
    first = {"messages": [{**ASKED, "name": "Ann"}, {**message("assistant", "b"), "reasoning_content": "because"}]}
    second = {"messages": [{**ASKED, "name": "Bob"}, message("assistant", "b")]}
    found = rows(tmp_path, first, second)
    assert encode_rows(found, make_tokenizer(), 64).unused == {"name": 2, "reasoning_content": 1}


def test_reasoning_is_held_against_every_row(make_tokenizer: Make, tmp_path: Path) -> None:
    thought = {**message("assistant", "b"), "reasoning_content": "because"}
    earlier = {"messages": [ASKED, {**thought, "weight": 0}, ASKED, message("assistant", "c")]}
    found = rows(tmp_path, {"messages": [ASKED, thought]}, earlier, earlier)
    assert encode_rows(found, make_tokenizer(THINKING), 200).unused == {"reasoning_content": 2}


def test_columns_that_are_not_read_are_counted(make_tokenizer: Make, tmp_path: Path) -> None:
    turns = {"messages": [ASKED, message("assistant", "b")]}
    found = rows(tmp_path, {**turns, "id": 0, "difficulty": "hard", "tools": None}, {**turns, "id": 1, "difficulty": None, "weight": 1})
    tokenizer = make_tokenizer()
    data = encode_rows(found, tokenizer, 64)
    assert data.unread == {"id": 2, "difficulty": 1}
    said = notes(data, tokenizer, "")
    assert "these columns of the rows are not read: 'difficulty' (1 row), 'id' (2 rows)" in said


def test_columns_of_a_columnar_file_that_are_not_read_are_counted(tmp_path: Path) -> None:
    from pyarrow import Table, parquet

    file = tmp_path / "rows.parquet"
    row = {"prompt": "a", "response": "b", "source": "x", "level": 3, "nothing": None, "empty": None}
    rows = Table.from_pylist([row] * 2)
    parquet.write_table(rows.set_column(5, "empty", rows["empty"].cast("string")), file)
    assert [one.unread for one in load_conversations(DataSpec(source=str(file)), tmp_path)] == [("source", "level")] * 2


def test_a_key_that_some_rendering_depends_on_is_used(make_tokenizer: Make) -> None:
    turns = [ASKED, {**message("assistant", "a"), "reasoning_content": "r"}, ASKED, message("assistant", "b")]
    assert unused_keys(make_tokenizer(THINKING), [Conversation(turns)]) == {}


def test_every_answer_is_learned_behind_its_own_prompt_where_a_template_rewrites_history(make_tokenizer: Make) -> None:
    tokenizer = make_tokenizer(THINKING)
    turns = [ASKED, {**message("assistant", "a"), "reasoning_content": "r"}, ASKED, message("assistant", "b")]
    first, second = tokenizer.encode_row(Conversation(turns))
    assert tokenizer.decode(first.tokens[first.loss_mask]) == "<think>\nr\n</think>\n\na<|end|>"
    assert tokenizer.decode(second.tokens[second.loss_mask]) == "<think>\n\n</think>\n\nb<|end|>"
    assert "assistant\na<|end|>" in tokenizer.decode(second.tokens)
    assert first.id != second.id


def test_the_second_of_two_answers_in_a_row_is_learned_with_its_thought(make_tokenizer: Make) -> None:
    turns = [ASKED, message("assistant", "a"), {**message("assistant", "b"), "reasoning_content": "r"}]
    assert learned(make_tokenizer(THINKING), Conversation(turns)) == [
        "<think>\n\n</think>\n\na<|end|><think>\nr\n</think>\n\nb<|end|>",
    ]


def test_a_prompt_that_opens_a_thought_which_the_answer_does_not_close_is_refused_with_both_texts(make_tokenizer: Make) -> None:
    template = TOOLED.replace("<|turn|>assistant\n{% endif %}", "<|turn|>assistant\n<think>\n{% endif %}")
    with pytest.raises(InputError, match=r"A server sends .*<think>.* a finished conversation reads .*yes"):
        make_tokenizer(template).encode_row(Conversation([ASKED, message("assistant", "yes")]))
