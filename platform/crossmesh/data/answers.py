"""What of an answer is the answer: the module that the judge would read, else its tagged content or its last block of code."""

import html
import re
from collections.abc import Sequence

from crossmesh.data.markdown import Block, code_blocks, strip_reasoning
from crossmesh.data.verilog import Module, module_texts, modules_of, reachable, without_comments

_ANSWER = re.compile(r"<answer\b[^<>]*>(.*?)(?:</answer\s*>|\Z)", re.DOTALL | re.IGNORECASE)
_ESCAPED = re.compile(r"&lt;/?answer\b.*?&gt;", re.IGNORECASE)
_COMMANDS = frozenset(
    ("sh", "bash", "zsh", "shell", "console", "terminal", "powershell", "cmd", "text", "txt", "plaintext", "output", "log")
)
"""Languages of blocks that show how an answer is used, not the answer."""


def answer_only(text: str) -> str:
    """Return what of an answer is to be learned, or nothing: reasoning, prose and examples of use are left out.

    In this order: the block with the last Verilog design, together with the blocks of the modules that it needs; a design outside
    of any fence, which gets one; what `<answer>` holds; the last block of code. Fences stand on lines of their own.
    """
    text = strip_reasoning(text)
    if _ESCAPED.search(text):
        text = html.unescape(text)
    answers = [found.strip() for found in _ANSWER.findall(text) if found.strip()]
    for part in (*reversed(answers), text):
        if design := _design(part):
            return design if code_blocks(part) or part is text else part
    if answers:
        return _last_block(answers[-1]) or answers[-1].replace("\r\n", "\n")
    return _last_block(text)


def _last_block(text: str) -> str:
    blocks = [block for block in code_blocks(text) if not block.inline or ";" in block.code]
    code = [block for block in blocks if block.language.lower() not in _COMMANDS]
    closed = [block for block in code if block.closed]
    for choice in (closed, code, blocks):
        if choice:
            return choice[-1].text
    return ""


def _design(text: str) -> str:
    """Return the blocks of the last design in `text`; of a text without fenced modules, its modules in a fence of their own."""
    blocks = [(block, modules_of(without_comments(block.code))) for block in code_blocks(text)]
    if any(found for _, found in blocks):
        return _design_blocks(blocks)
    plain = text.replace("\r\n", "\n")
    found = modules_of(without_comments(plain.replace("```", "   ")))
    if not found:
        return ""
    needed = reachable({module.name: module for module in found}, _top(found))
    return "```verilog\n" + "\n\n".join(module_texts(plain, needed)) + "\n```"


def _design_blocks(blocks: Sequence[tuple[Block, Sequence[Module]]]) -> str:
    holds: dict[str, int] = {}
    modules: dict[str, Module] = {}
    for index, (_, found) in enumerate(blocks):
        for module in found:
            holds[module.name], modules[module.name] = index, module
    needed = reachable(modules, _top([module for _, found in blocks for module in found]))
    chosen = [blocks[index][0] for index in sorted({holds[name] for name in needed})]
    if len(chosen) == 1:
        return chosen[0].text
    code = "\n\n".join(block.code for block in chosen)
    return f"{chosen[-1].fence}{chosen[-1].language}\n{code}\n{chosen[-1].fence}"


def _top(modules: Sequence[Module]) -> str:
    """Name of the design: the last module that no other design instantiates. One without ports is a testbench where others have some."""
    designs = [module for module in modules if module.has_ports] or list(modules)
    used = {token.text for module in designs for token in module.tokens[2:] if token.kind == "name" and token.text != module.name}
    roots = [module.name for module in designs if module.name not in used]
    return (roots or [module.name for module in designs])[-1]
