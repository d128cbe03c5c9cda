from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crossmesh.data.chat import ChatTokenizer
from crossmesh.data.conversation import Conversation, message, row_id
from crossmesh.errors import InputError

Make = Callable[..., ChatTokenizer]

CHATML = (
    "{% for message in messages %}<|turn|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
# As Gemma's: `model` for the assistant, trimmed contents.
TRIMMED = (
    "{{ bos_token }}{% for message in messages %}<|turn|>{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{{ message['content'] | trim }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|turn|>model\n{% endif %}"
)
# As Qwen 3's and Gemma 4's: asked for an answer, the template writes an empty thought that a finished conversation does not have.
EMPTY_THOUGHT = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n\n</think>\n\n{% endif")
# As Mistral's: no header before the answer, a space, and the end-of-sequence token at once.
INLINE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}[INST] {{ message['content'] }} [/INST]"
    "{% else %} {{ message['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
)
# As gpt-oss's: the last turn ends with another token than the ones before it.
LAST_DIFFERS = CHATML.replace("<|end|>\n", "{% if loop.last and message['role'] == 'assistant' %}<eos>{% else %}<|end|>\n{% endif %}")
TURN = "{{ message['content'] }}<|end|>"
MARKED = CHATML.replace(
    TURN, f"{{% if message['role'] == 'assistant' %}}{{% generation %}}{TURN}{{% endgeneration %}}{{% else %}}{TURN}{{% endif %}}"
)
# Marks the answer behind the last question only, and renders it where it stands.
MARKED_LAST = CHATML.replace(
    TURN, f"{{% if loop.index == 4 %}}{{% generation %}}{TURN}{{% endgeneration %}}{{% else %}}{TURN}{{% endif %}}"
)

ROW = [
    message("user", "Add two bits."),
    message("assistant", " assign y = a + b; "),
    message("user", "Now é and 12?"),
    message("assistant", "```verilog\nmodule m;\nendmodule\n```"),
]


def masked(tokenizer: ChatTokenizer, row: list[dict[str, str]]) -> list[str]:
    """Return what is learned of each row that `row` gives, after checking that all before it is what a server would send."""
    shown = []
    for encoded in tokenizer.encode_row(Conversation(row)):
        assert encoded.tokens.dtype == np.int32
        first = int(np.flatnonzero(encoded.loss_mask)[0])
        served = [tokenizer.encode(tokenizer.render(row[:count], add_generation_prompt=True)) for count in range(1, len(row))]
        assert encoded.tokens[:first].tolist() in served
        shown.append(tokenizer.decode(encoded.tokens[encoded.loss_mask]))
    return shown


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, [" assign y = a + b; <|end|>```verilog\nmodule m;\nendmodule\n```<|end|>"]),
        (TRIMMED, ["assign y = a + b;<|end|>```verilog\nmodule m;\nendmodule\n```<|end|>"]),
        (EMPTY_THOUGHT, [" assign y = a + b; <|end|>", "```verilog\nmodule m;\nendmodule\n```<|end|>"]),
        (INLINE, ["  assign y = a + b; <|end|> ```verilog\nmodule m;\nendmodule\n```<|end|>"]),
        (LAST_DIFFERS, [" assign y = a + b; <eos>", "```verilog\nmodule m;\nendmodule\n```<eos>"]),
        (MARKED, [" assign y = a + b; <|end|>```verilog\nmodule m;\nendmodule\n```<|end|>"]),
        (MARKED_LAST, ["```verilog\nmodule m;\nendmodule\n```<|end|>"]),
    ],
    ids=["chatml", "trimmed", "empty_thought", "inline", "last_differs", "marked", "marked_last"],
)
def test_mask_is_each_answer_with_its_end_of_turn(make_tokenizer: Make, template: str, expected: list[str]) -> None:
    assert masked(make_tokenizer(template), ROW) == expected


def test_prompt_tokens_never_carry_loss(make_tokenizer: Make) -> None:
    tokenizer = make_tokenizer()
    row = ROW[:2]
    (encoded,) = tokenizer.encode_row(Conversation(row))
    prompt = tokenizer.encode(tokenizer.render(row[:1], add_generation_prompt=True))
    assert encoded.tokens[: len(prompt)].tolist() == prompt
    assert not encoded.loss_mask[: len(prompt)].any()
    assert encoded.loss_mask[len(prompt)]
    # The line break after the end-of-turn token is the template's, not the model's.
    assert encoded.loss_mask.tolist()[-2:] == [True, False]


def test_an_answer_that_repeats_the_question_is_masked_where_it_stands(make_tokenizer: Make) -> None:
    tokenizer = make_tokenizer(CHATML)
    turns = [message("user", "yes"), message("assistant", "yes"), message("user", "yes"), message("assistant", "yes")]
    (encoded,) = tokenizer.encode_row(Conversation(turns))
    runs = np.flatnonzero(np.diff(np.concatenate([[0], encoded.loss_mask.astype(int)])) == 1)
    assert len(runs) == 2
    assert tokenizer.decode(encoded.tokens[encoded.loss_mask]) == "yes<|end|>yes<|end|>"


def test_an_answer_may_hold_special_tokens_and_placeholder_like_text(make_tokenizer: Make) -> None:
    row = [message("user", "AqA"), message("assistant", "AqA <|end|> BqB")]
    assert masked(make_tokenizer(CHATML), row) == ["AqA <|end|> BqB<|end|>"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(answer=st.text(min_size=1, max_size=40).filter(lambda text: bool(text.strip())), question=st.text(max_size=20))
def test_any_text_is_masked_whole(make_tokenizer: Make, tmp_path: Path, answer: str, question: str) -> None:
    tokenizer = ChatTokenizer(tmp_path / "tokenizer") if (tmp_path / "tokenizer").exists() else make_tokenizer(CHATML)
    assert masked(tokenizer, [message("user", question), message("assistant", answer)]) == [f"{answer}<|end|>"]


def test_row_without_assistant_turn(make_tokenizer: Make) -> None:
    with pytest.raises(InputError, match=r"no assistant turn: its roles are \['user'\]"):
        make_tokenizer().encode_row(Conversation([message("user", "hi")]))


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        (
            "{% for message in messages %}{% if message['role'] != 'assistant' %}{{ message['content'] }}<|end|>{% endif %}{% endfor %}",
            "leaves out|does not copy|without a special token",
        ),
        (CHATML.replace("{{ message['content'] }}", "{{ message['content'] | upper }}"), "does not copy"),
        (CHATML.replace("{{ message['content'] }}", "{{ message['content'] * 2 }}"), "does not copy"),
        (CHATML.replace("{{ message['content'] }}", "{{ message['content'] | replace('yes', 'no') }}"), "changes answers"),
        (CHATML.replace("<|end|>", ""), "without a special token"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    ],
    ids=["drops", "upper", "twice", "rewrites", "no_end", "raises"],
)
def test_templates_that_cannot_be_trained_on_say_so(make_tokenizer: Make, template: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        make_tokenizer(template).encode_row(Conversation([message("user", "ok?"), message("assistant", "yes")]))


def test_template_errors_and_missing_files(make_tokenizer: Make, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not compile"):
        make_tokenizer("{% if %}")
    (tmp_path / "tokenizer" / "chat_template.jinja").unlink()
    with pytest.raises(InputError, match="has no chat template"):
        ChatTokenizer(tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "tokenizer_config.json").unlink()
    with pytest.raises(InputError, match=r"has no tokenizer_config\.json"):
        ChatTokenizer(tmp_path / "tokenizer")


def test_template_runs_sandboxed(make_tokenizer: Make) -> None:
    with pytest.raises(InputError, match="unsafe"):
        make_tokenizer("{{ ''.__class__.__mro__[1].__subclasses__() }}").render([message("user", "hi")])


def test_template_helpers_are_those_of_transformers(make_tokenizer: Make) -> None:
    template = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m | tojson }}{{ strftime_now('%%') }}{% endfor %}"
    # jinja2's own tojson would escape `<` and sort the keys.
    assert make_tokenizer(template).render([message("user", "a<b é"), message("user", "x")]) == '{"role": "user", "content": "a<b é"}%'


def test_ids_of_named_tokens(make_tokenizer: Make) -> None:
    tokenizer = make_tokenizer()
    assert tokenizer.decode([tokenizer.pad_id]) == "<pad>"
    assert tokenizer.decode([tokenizer.eos_id]) == "<|end|>"
    assert tokenizer.vocab_size == 512


def test_row_id_depends_on_all_that_the_model_sees() -> None:
    row = [message("user", "a"), message("assistant", "b")]
    same = Conversation([{"content": "a", "role": "user"}, {"content": "b", "role": "assistant"}], place="elsewhere")
    assert row_id(Conversation(row)) == row_id(same)
    others = [
        Conversation([message("user", "ab"), message("assistant", "")]),
        Conversation([row[0], {**row[1], "reasoning_content": "because"}]),
        Conversation(row, {"tools": [{"name": "f"}]}),
        Conversation(row, muted=frozenset([1])),
    ]
    assert len({row_id(one) for one in [same, *others]}) == 5
    assert len(row_id(same)) == 16


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{{ messages + 1 }}", "{% for i in range(1000000) %}{% endfor %}"])
def test_a_template_that_fails_in_any_way_is_named(make_tokenizer: Make, template: str) -> None:
    with pytest.raises(InputError, match="refuses a row"):
        make_tokenizer(template).render([message("user", "a")])


@pytest.mark.parametrize(("name", "text"), [("tokenizer.json", "{bro"), ("tokenizer.json", "{}"), ("tokenizer_config.json", "[]")])
def test_damaged_tokenizer_files_are_named(make_tokenizer: Make, tmp_path: Path, name: str, text: str) -> None:
    make_tokenizer()
    (tmp_path / "tokenizer" / name).write_text(text)
    with pytest.raises(InputError, match=rf"{name} cannot be read"):
        ChatTokenizer(tmp_path / "tokenizer")
