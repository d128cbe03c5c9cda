"""One reader of chat templates: for rows, for fingerprints, for servers and for exported models."""

import json
from pathlib import Path

import pytest

from crossmesh.errors import InputError
from crossmesh.model_folder import chat_template, template_of
from crossmesh.models.serving_defaults import ServingDefaults, write_defaults

CONFIGS = {
    "text": ({"chat_template": "{{ a }}"}, "{{ a }}"),
    "named": ({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}, "d"),
    "no default": ({"chat_template": [{"name": "tool_use", "template": "t"}]}, None),
    "empty": ({"chat_template": ""}, None),
    "blank": ({"chat_template": " \n"}, None),
    "empty default": ({"chat_template": [{"name": "default", "template": ""}]}, None),
    "null": ({"chat_template": None}, None),
    "none": ({}, None),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_the_template_of_a_configuration(tmp_path: Path, case: str) -> None:
    config, wanted = CONFIGS[case]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert template_of(tmp_path) == wanted
    if wanted is None:
        with pytest.raises(InputError, match="has no chat template, or an empty one"):
            chat_template(tmp_path)
    else:
        assert chat_template(tmp_path) == wanted


@pytest.mark.parametrize(("text", "wanted"), [("{{ f }}\n", "{{ f }}\n"), ("", None), ("\n", None)])
def test_a_file_goes_before_the_configuration_also_when_it_is_empty(tmp_path: Path, text: str, wanted: str | None) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ a }}"}))
    (tmp_path / "chat_template.jinja").write_text(text)
    assert template_of(tmp_path) == wanted


def test_a_folder_without_either_file_has_none(tmp_path: Path) -> None:
    assert template_of(tmp_path) is None


def test_a_damaged_configuration_is_named(tmp_path: Path) -> None:
    for damaged in ("{", '{"chat_template": [{"template": "without a name"}]}', "[1]"):
        (tmp_path / "tokenizer_config.json").write_text(damaged)
        with pytest.raises(InputError, match=r"tokenizer_config\.json cannot be read"):
            template_of(tmp_path)


def test_nothing_is_written_into_a_model_without_a_template(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": ""}))
    assert write_defaults(tmp_path, ServingDefaults((), "2026-01-01")) == ()
