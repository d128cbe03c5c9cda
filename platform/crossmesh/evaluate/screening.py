"""Refuse designs that could reach for the judge instead of solving the problem.

Pure text work. A design under test may be any synthesizable module. It may not call system tasks (`$finish`, `$value$plusargs`,
`$fopen`), use the preprocessor beyond a few harmless directives, or name anything that the testbench declares: Verilog resolves task names
and hierarchical names upwards, so `initial report;` in a design would call the testbench's own `task report`.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from crossmesh.data.verilog import Token, tokenize, without_comments

SYSTEM_FUNCTIONS = frozenset(
    (
        *("$bits", "$clog2", "$countones", "$countbits", "$dimensions", "$high", "$increment", "$isunknown", "$left", "$low"),
        *("$onehot", "$onehot0", "$right", "$signed", "$size", "$unpacked_dimensions", "$unsigned"),
    )
)
"""Functions of their arguments alone."""
DIRECTIVES = frozenset(("`timescale", "`default_nettype", "`resetall", "`celldefine", "`endcelldefine"))
"""Directives that neither include files nor define text."""

_SCOPES = frozenset(("module", "macromodule", "program", "interface", "package", "class", "task", "function"))
_PRINTABLE = re.compile(r"[^\t\n\f\r -~]")


def refusal(design: str, testbench: str, support: str = "") -> str:
    """Say why `design` must not be judged beside `testbench`, or return an empty string when it may be.

    Of `support` it may not name a module: it would be judged by what it is compared with.
    """
    if "\\" in design or '"""' in design:
        return "it has a backslash or a triple quote, which the judge does not read"
    if odd := _PRINTABLE.search(design):
        return f"it has the character {odd.group()!r} outside a comment"
    tokens = tokenize(design)
    bench = tokenize(without_comments(testbench))
    scopes = {"tb"} | set(_scopes(bench)) | set(_modules(tokenize(without_comments(support))))
    names = {token.text for token in bench if token.kind == "name"}
    for index, token in enumerate(tokens):
        if token.kind == "system" and token.text not in SYSTEM_FUNCTIONS:
            return f"it uses the system task or function {token.text}"
        if token.kind == "directive" and token.text not in DIRECTIVES:
            return f"it uses the compiler directive {token.text}"
        if token.text == '"' or (token.text == "`"):
            return f"it has a stray {token.text}"
        if token.kind == "name" and token.text in scopes:
            return f"it names {token.text}, which belongs to the testbench"
        if token.text == "." and (head := _head(tokens, index)) in names:
            return f"it reaches into {head}, a name of the testbench"
    return ""


def _scopes(tokens: Sequence[Token]) -> Iterator[str]:
    """Names that a testbench declares and a design could reach upwards: modules, tasks, functions, named blocks."""
    for index, token in enumerate(tokens):
        if token.text in _SCOPES:
            # The declared name is the last one before the ports or the semicolon: `function automatic [7:0] name (`.
            before = [t.text for t in _until(tokens[index + 1 :], ("(", ";", "#")) if t.kind == "name"]
            yield from before[-1:]
        elif token.text == ":" and index and tokens[index - 1].text in ("begin", "fork") and index + 1 < len(tokens):
            yield tokens[index + 1].text


def _modules(tokens: Sequence[Token]) -> Iterator[str]:
    """Names of the modules that `tokens` declare."""
    return (name.text for token, name in pairwise(tokens) if token.text in ("module", "macromodule") and name.kind == "name")


def _until(tokens: Sequence[Token], ends: tuple[str, ...]) -> Iterator[Token]:
    """Yield tokens up to the first of `ends` outside brackets."""
    depth = 0
    for token in tokens:
        if not depth and token.text in ends:
            return
        depth += (token.text == "[") - (token.text == "]")
        if not depth and token.text != "]":
            yield token


def _head(tokens: Sequence[Token], dot: int) -> str:
    """Return the name that starts a path, `a` in `a.b` and `a[3].b`; empty where the dot connects a port or continues a path."""
    index = dot - 1
    while index >= 0 and tokens[index].text == "]":
        depth = 0
        while index >= 0:
            depth += (tokens[index].text == "]") - (tokens[index].text == "[")
            index -= 1
            if not depth:
                break
    if index < 0 or tokens[index].kind != "name" or (index and tokens[index - 1].text == "."):
        return ""
    return tokens[index].text
