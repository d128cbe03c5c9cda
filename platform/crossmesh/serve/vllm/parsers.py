"""Which of vLLM's parsers read tool calls and reasoning out of answers. Names are checked where the engine is (`engine_vllm.py`)."""

from typing import Any

from crossmesh.config.serving import ServeSpec
from crossmesh.config.training import AUTO

NONE = "none"

_SIGNS = (
    ("<|tool_call>", "gemma4"),
    ("<start_function_call>", "functiongemma"),
    ("<function=", "qwen3_coder"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_tag|>", "llama3_json"),
    ("Environment: ipython", "llama3_json"),
)
"""What chat templates write around a tool call, and vLLM's parser of that form; the first that fits counts."""


def parser_arguments(serve: ServeSpec, template: str) -> dict[str, Any]:
    """Return vLLM's arguments for parsing the answers of a model with the chat template `template` (empty: none)."""
    if serve.task == "embed":
        return {}
    tools = tool_parser(template) if serve.tool_parser == AUTO else serve.tool_parser
    arguments: dict[str, Any] = {"enable_auto_tool_choice": True, "tool_call_parser": tools} if tools != NONE else {}
    return arguments | ({"reasoning_parser": serve.reasoning_parser} if serve.reasoning_parser != NONE else {})


def tool_parser(template: str) -> str:
    """Return vLLM's parser of the tool calls that `template` writes; `none` for a template that writes none, or in another form."""
    return next((name for sign, name in _SIGNS if sign in template), NONE)
