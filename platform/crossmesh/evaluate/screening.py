"""Refuse designs that could reach for the judge instead of solving the problem.

Pure text work. A design under test may be any module, and may compute, check and print what it likes: the testbench's word carries a nonce
that a design has no way to. It may not end the simulation, read the command line (`$value$plusargs`), touch files (`$fopen`), switch the
testbench's assertions off, use the preprocessor beyond a few harmless directives, or name anything that the testbench declares: Verilog
resolves task names and hierarchical names upwards, so `initial report;` in a design would call the testbench's own `task report`.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from crossmesh.data.verilog import Token, tokenize, without_comments

_ARRAYS = "bits clog2 countones countbits dimensions high increment isunbounded isunknown left low onehot onehot0 right size typename"
_CONVERSIONS = "bitstoreal bitstoshortreal cast itor realtobits rtoi shortrealtobits signed unsigned"
_MATH = (
    "abs acos acosh asin asinh atan atan2 atanh ceil cos cosh exp floor hypot ln log10 max min pow sin sinh sqrt tan tanh "
    "dist_chi_square dist_erlang dist_exponential dist_normal dist_poisson dist_t dist_uniform random urandom urandom_range"
)
_TEXT = "psprintf sformat sformatf sscanf swrite swriteb swriteh swriteo"
_PRINTS = " ".join(f"{task}{base}" for task in ("display", "write", "monitor", "strobe") for base in ("", "b", "h", "o"))
_SEVERITIES = "info warning error fatal"
_SAMPLED = "changed fell past rose sampled stable"
_TIMES = "monitoroff monitoron printtimescale realtime stime time timeformat"
_CHECKS = "fullskew hold nochange period recovery recrem removal setup setuphold skew timeskew width"
SYSTEM_NAMES = frozenset(
    f"${name}"
    for names in (_ARRAYS, _CONVERSIONS, _MATH, _TEXT, _PRINTS, _SEVERITIES, _SAMPLED, _TIMES, _CHECKS, "unpacked_dimensions")
    for name in names.split()
)
"""System functions and tasks of IEEE 1800 that neither touch a file or a program nor steer the simulation. `$fatal` ends it, with an exit
status by which nothing passes."""
DIRECTIVES = frozenset(("`timescale", "`default_nettype", "`resetall", "`celldefine", "`endcelldefine"))
"""Directives that neither include files nor define text."""

_SCOPES = frozenset(("module", "macromodule", "program", "interface", "package", "class", "task", "function"))
_PRINTABLE = re.compile(r"[^\t\n\f\r -~]")


def refusal(design: str, testbench: str, support: str = "") -> str:
    """Say why `design` must not be judged beside `testbench`, or return an empty string when it may be.

    Of `support` it may not name a module: it would be judged by what it is compared with.
    """
    if '"""' in design:
        return "it has a triple quote, which the judge does not read"
    if odd := _PRINTABLE.search(design):
        return f"it has the character {odd.group()!r} outside a comment"
    tokens = tokenize(design)
    bench = tokenize(without_comments(testbench))
    scopes = {"tb"} | set(_scopes(bench)) | set(_modules(tokenize(without_comments(support))))
    names = {token.text for token in bench if token.kind == "name"}
    for index, token in enumerate(tokens):
        if token.kind == "system" and token.text not in SYSTEM_NAMES:
            return f"it uses the system task or function {token.text}"
        if token.kind == "directive" and token.text not in DIRECTIVES:
            return f"it uses the compiler directive {token.text}"
        if why := _unreadable(token, design):
            return why
        if token.kind == "name" and token.text in scopes:
            return f"it names {token.text}, which belongs to the testbench"
        if token.kind == "escaped" and token.text[1:].partition(".")[0] in names | scopes and "." in token.text:
            return f"it reaches into {token.text}, a name of the testbench"
        if token.text == "." and (head := _head(tokens, index)) in names:
            return f"it reaches into {head}, a name of the testbench"
    return ""


def _unreadable(token: Token, design: str) -> str:
    """Say what of a token a simulator may read in another way than the screening does."""
    if token.kind == "other" and token.text in ('"', "`", "\\"):
        return f"it has a stray {token.text}"
    if token.kind == "string" and "`" in token.text:
        return "it has a ` in a string"
    text = design[token.start : token.end]
    if text.startswith("\\") and ("//" in text or "/*" in text or design[token.end : token.end + 1].strip()):
        return f"it has the escaped name {text}, which the judge does not read"
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
