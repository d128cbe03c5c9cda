"""What a trained model is served with: read back as written, refused when broken, and in the files of a whole model."""

import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from crossmesh.data.chat import ChatTokenizer
from crossmesh.data.served import serving_stops
from crossmesh.data.template import ChatTemplate
from crossmesh.errors import InputError
from crossmesh.files import read_json
from crossmesh.models.serving_defaults import ServingDefaults, common_defaults, fixed_template, read_defaults, write_defaults

TINY = Path(__file__).resolve().parents[3] / "platform" / "crossmesh" / "models" / "tiny_tokenizer"
DATE = "2024-03-05T07:08"
TURNS = [{"role": "user", "content": "hello"}]
LLAMA = (
    "{{- bos_token }}\n{%- if not date_string is defined %}\n    {%- if strftime_now is defined %}\n"
    '        {%- set date_string = strftime_now("%d %b %Y") %}\n    {%- else %}\n        {%- set date_string = "26 Jul 2024" %}\n'
    "    {%- endif %}\n{%- endif %}\nToday: {{ date_string }}\n{% for m in messages %}{{ m.content }}{% endfor %}"
)
IN_MACRO = "\n\n{% macro day() %}{{ strftime_now('%Y-%m-%d') }}{% endmacro %}  <{{ day() }}>{{ messages[0].content }}"
EVERY = "{{ strftime_now('%A %a %B %b %-d %d %-m %m %y %Y %H:%M:%S %I %p %j 100%% %%d %D %e %F %T') }}"


def rendered(text: str, now: datetime | None = None, **context: Any) -> str:
    return ChatTemplate(TINY, text, {"bos_token": "<s>"}, now).render(TURNS, context)


@pytest.mark.parametrize("text", [LLAMA, IN_MACRO, EVERY, "\nno date {{ messages[0].content }}\n"])
def test_a_fixed_template_renders_on_any_day_what_was_trained(text: str) -> None:
    fixed = fixed_template(text, ServingDefaults(template_date=DATE))
    assert rendered(fixed) == rendered(text, datetime.fromisoformat(DATE))
    assert not ChatTemplate(TINY, fixed, {}).uses_date
    assert ChatTemplate(TINY, text, {}).uses_date == ("strftime_now" in text)


def test_transformers_renders_a_fixed_template_alike() -> None:
    from transformers.utils import chat_template_utils as utils

    fixed = fixed_template(LLAMA, ServingDefaults(template_date=DATE, template_kwargs={"mode": "x"}))
    (text,), _ = utils.render_jinja_template(conversations=[TURNS], chat_template=fixed, bos_token="<s>")
    assert text == "<s>Today: 05 Mar 2024\nhello"


@pytest.mark.parametrize("value", [True, False, 3, 1.5, 'a"b\\c\n%} é \U0001f600 {{ x }}', [1, "b", None], {"a": {"b": [True]}}])
def test_variables_of_training_are_in_the_template_and_a_request_may_set_others(value: Any) -> None:
    text = "{{ mode is defined and mode != None }}{{ mode|tojson }}{{ messages[0].content }}"
    fixed = fixed_template(text, ServingDefaults(template_kwargs={"mode": value}))
    assert rendered(fixed) == rendered(text, mode=value)
    assert rendered(fixed, mode="other") == rendered(text, mode="other")


def test_what_is_written_is_read_back_and_nothing_is_written_of_nothing() -> None:
    said = ServingDefaults((3, 7), DATE, {"enable_thinking": False})
    assert read_defaults(said.text(), "here") == said
    assert (ServingDefaults().text(), read_defaults("", "here")) == ("", ServingDefaults())
    assert said.asks["strftime_now"]("%d %b %Y") == "05 Mar 2024"
    assert ServingDefaults.of((), "", {"chat_template": "x", "a b": 1, "mode": 2}).template_kwargs == {"mode": 2}


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        '{"other": 1}',
        '{"stop_ids": [-1]}',
        '{"stop_ids": [true]}',
        '{"stop_ids": 5}',
        json.dumps({"stop_ids": list(range(257))}),
        '{"template_date": "tomorrow"}',
        '{"template_date": 5}',
        '{"template_kwargs": {"chat_template": "{{ x }}"}}',
        '{"template_kwargs": {"a b": 1}}',
        '{"template_kwargs": [1]}',
    ],
)
def test_what_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="adapter: what it says of serving cannot be used"):
        read_defaults(text, "adapter")


def test_a_base_is_asked_as_its_adapters_where_they_agree() -> None:
    one, two, other = ServingDefaults((3,), DATE), ServingDefaults((), DATE), ServingDefaults((), "2025-01-01")
    assert common_defaults([one, two]) == ServingDefaults((), DATE)
    assert common_defaults([one, other]) == common_defaults([]) == common_defaults([one, ServingDefaults()]) == ServingDefaults()


def model_folder(folder: Path, template: str | None = None, **config: Any) -> Path:
    shutil.copytree(TINY, folder)
    (folder / "config.json").write_text(json.dumps(config))
    if template is not None:  # As older folders have it.
        (folder / "chat_template.jinja").unlink()
        said = read_json(folder / "tokenizer_config.json")
        (folder / "tokenizer_config.json").write_text(json.dumps({**said, "chat_template": template}))
    return folder


@pytest.mark.parametrize("generation", [None, {"eos_token_id": 1, "temperature": 0.7}, {"eos_token_id": [1, 2]}, {"temperature": 0.7}])
def test_a_whole_model_stops_where_its_answers_end(tmp_path: Path, generation: dict[str, Any] | None) -> None:
    folder = model_folder(tmp_path / "model", text_config={"eos_token_id": 1})
    if generation:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    before = serving_stops(folder, ChatTokenizer(folder))
    assert write_defaults(folder, ServingDefaults((9,))) == ("generation_config.json",)
    assert serving_stops(folder, ChatTokenizer(folder)) == before | {9}
    kept = {key: value for key, value in read_json(folder / "generation_config.json").items() if key != "eos_token_id"}
    assert kept == {key: value for key, value in (generation or {}).items() if key != "eos_token_id"}


@pytest.mark.parametrize("template", [None, LLAMA])
def test_a_whole_model_is_asked_with_the_date_of_its_training(tmp_path: Path, template: str | None) -> None:
    folder = model_folder(tmp_path / "model", template)
    if template is None:
        (folder / "chat_template.jinja").write_text(LLAMA)
    expected = ChatTokenizer(folder, DATE).render(TURNS)
    assert "05 Mar 2024" in expected
    write_defaults(folder, ServingDefaults(template_date=DATE))
    assert ChatTokenizer(folder).render(TURNS) == expected
    assert "chat_template" not in read_json(folder / "tokenizer_config.json")


def test_named_templates_of_a_whole_model_all_stay(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", LLAMA)
    config = {**read_json(folder / "tokenizer_config.json")}
    named = [{"name": "default", "template": LLAMA}, {"name": "tool_use", "template": f"{LLAMA}tools"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": named}))
    assert write_defaults(folder, ServingDefaults(template_date=DATE)) == ("tokenizer_config.json",)
    kept = read_json(folder / "tokenizer_config.json")["chat_template"]
    assert [one["name"] for one in kept] == ["default", "tool_use"]
    assert [rendered(one["template"]) for one in kept] == [rendered(LLAMA, datetime.fromisoformat(DATE)) + end for end in ("", "tools")]


def test_nothing_is_touched_without_need(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert write_defaults(folder, ServingDefaults()) == ()
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
