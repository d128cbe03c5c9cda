"""Which of vLLM's parsers reads tool calls: what the chat template writes, unless the spec names one."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from crossmesh.config.serving import ServeSpec
from crossmesh.errors import InputError
from crossmesh.serve.vllm.parsers import _SIGNS, parser_arguments, tool_parser


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        ("{{ '<tool_call>\\n' }}{{ call | tojson }}", "hermes"),
        ("<tool_call>\n<function={{ name }}>", "qwen3_coder"),
        ("{%- if tools %}Environment: ipython{% endif %}", "llama3_json"),
        ("[TOOL_CALLS] [{{ call }}]", "mistral"),
        ("{{ '<|tool_call>' }}", "gemma4"),
        ("{{ message['content'] }}", "none"),
        ("", "none"),
    ],
)
def test_the_form_that_a_template_writes_says_the_parser(template: str, parser: str) -> None:
    assert tool_parser(template) == parser


def test_every_parser_is_one_of_vllms() -> None:
    found = find_spec("vllm")
    assert found is not None
    assert found.origin is not None
    registered = re.findall(r'^    "([\w.-]+)": \(', (Path(found.origin).parent / "tool_parsers" / "__init__.py").read_text(), re.MULTILINE)
    assert {name for _, name in _SIGNS} <= set(registered)


def test_arguments_are_those_of_vllm() -> None:
    calling = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    assert parser_arguments(ServeSpec(), "<tool_call>") == calling
    assert parser_arguments(ServeSpec(), "") == {}
    assert parser_arguments(ServeSpec(tool_parser="none"), "<tool_call>") == {}
    assert parser_arguments(ServeSpec(tool_parser="hermes", reasoning_parser="qwen3"), "") == calling | {"reasoning_parser": "qwen3"}
    assert parser_arguments(ServeSpec(task="embed"), "<tool_call>") == {}
    with pytest.raises(InputError, match=r"serve\.tool_parser"):
        ServeSpec(tool_parser="")
