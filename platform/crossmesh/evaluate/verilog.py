"""Find the Verilog in a model's answer, and refuse what could reach for the judge instead of solving the problem.

Pure text work with a small lexer; nothing is compiled or run here. A design under test may be any synthesizable module. It may not
call system tasks (`$finish`, `$value$plusargs`, `$fopen`), use the preprocessor beyond a few harmless directives, or name
anything that the testbench declares: Verilog resolves task names and hierarchical names upwards, so `initial report;` in a design
would call the testbench's own `task report`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SYSTEM_FUNCTIONS = frozenset(
    (
        *("$bits", "$clog2", "$countones", "$countbits", "$dimensions", "$high", "$increment", "$isunknown", "$left", "$low"),
        *("$onehot", "$onehot0", "$right", "$signed", "$size", "$unpacked_dimensions", "$unsigned"),
    )
)
"""Functions of their arguments alone."""
DIRECTIVES = frozenset(("`timescale", "`default_nettype", "`resetall", "`celldefine", "`endcelldefine"))
"""Directives that neither include files nor define text."""

_THINK = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
_NOT_CODE = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_TOKEN = re.compile(
    r"""
    (?P<string>"[^"\n]*") | (?P<directive>`[A-Za-z_]\w*) | (?P<system>\$[A-Za-z_$][\w$]*) | (?P<name>[A-Za-z_][\w$]*)
    | (?P<number>\d[\d_]*(?:\.\d+)? | '[sS]?(?:[bB]\s*[01xXzZ?_]+|[oO]\s*[0-7xXzZ?_]+|[dD]\s*[\dxXzZ?_]+|[hH]\s*[\da-fA-FxXzZ?_]+))
    | (?P<other>\S)
    """,
    re.VERBOSE,
)
_SCOPES = frozenset(("module", "macromodule", "program", "interface", "package", "class", "task", "function"))
_PRINTABLE = re.compile(r"[^\t\n\f\r -~]")


@dataclass(frozen=True)
class Token:
    """One token and where it stands in its text."""

    kind: str
    """`string`, `directive`, `system`, `name`, `number` or `other`."""
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Module:
    """One module of an answer."""

    name: str
    tokens: tuple[Token, ...]
    """From `module` to `endmodule`."""
    text: str

    @property
    def empty(self) -> bool:
        """Whether nothing after the header drives, computes or instantiates anything."""
        words = [token.text for token in self.tokens]
        body = words[words.index(";") + 1 :] if ";" in words else []
        return not any(word in ("=", "(") for word in body)


@dataclass(frozen=True)
class Extraction:
    """What was found in an answer for a wanted module."""

    design: str = ""
    """Source text without comments: the wanted module, the modules it needs and, from a fence, what stands between modules."""
    problem: str = ""
    """Empty, or why there is nothing to simulate: `no_module`, `truncated`, `wrong_module` or `empty_module`."""


def tokenize(text: str) -> tuple[Token, ...]:
    """Split comment-free Verilog into tokens."""
    return tuple(Token(str(match.lastgroup), match.group(), match.start(), match.end()) for match in _TOKEN.finditer(text))


def without_comments(text: str) -> str:
    """Replace comments by spaces, newlines kept; strings are left alone. Positions stay as they were."""
    return _NOT_CODE.sub(lambda match: match.group() if match.group().startswith('"') else re.sub(r"[^\n]", " ", match.group()), text)


def extract(answer: str, wanted: str) -> Extraction:
    """Find the module `wanted` in an answer: in its code fences, closed or not, or else in its plain text.

    Reasoning in `<think>` is ignored. When a module is given more than once the last complete one counts. Modules that `wanted`
    does not need, such as a testbench of the model's own, are left out.
    """
    text = _THINK.sub("", answer)
    blocks = [without_comments(block) for block in _FENCE.findall(text)]
    fenced = any(token.text == "module" for block in blocks for token in tokenize(block))
    if not fenced:
        blocks = [without_comments(text)]
    modules: dict[str, Module] = {}
    between: dict[str, str] = {}
    begun = False
    for block in blocks:
        found, rest, unfinished = _split(block)
        begun = begun or unfinished
        for module in found:
            modules[module.name] = module
            between[module.name] = rest if fenced else ""
    if wanted not in modules:
        return Extraction(problem="truncated" if begun else "wrong_module" if modules else "no_module")
    needed = _reachable(modules, wanted)
    design = "\n".join([between[wanted], *(modules[name].text for name in needed)]) + "\n"
    return Extraction(design, "empty_module" if modules[wanted].empty else "")


def _split(block: str) -> tuple[list[Module], str, bool]:
    """Return the complete modules of a block, the text between them, and whether one was begun and never ended."""
    tokens = tokenize(block)
    modules: list[Module] = []
    rest = list(block)
    first: int | None = None

    def cut(begin: int, end: int) -> None:
        rest[begin:end] = " " * (end - begin)

    for index, token in enumerate(tokens):
        if _declares_module(tokens, index):
            if first is not None:
                cut(tokens[first].start, token.start)
            first = index
        elif token.text == "endmodule" and first is not None:
            begin = tokens[first].start
            modules.append(Module(tokens[first + 1].text, tokens[first : index + 1], block[begin : token.end]))
            cut(begin, token.end)
            first = None
    if first is not None:
        cut(tokens[first].start, len(block))
    return modules, "".join(rest).strip(), first is not None


def _declares_module(tokens: Sequence[Token], index: int) -> bool:
    """Tell `module name (`, `module name #(` and `module name;` from the word in a sentence."""
    if tokens[index].text not in ("module", "macromodule") or index + 2 >= len(tokens):
        return False
    return tokens[index + 1].kind == "name" and tokens[index + 2].text in ("(", "#", ";", "import")


def _reachable(modules: dict[str, Module], wanted: str) -> list[str]:
    """Names of the modules that `wanted` mentions, directly or through others, and its own."""
    needed = [wanted]
    for name in needed:
        needed += [t.text for t in modules[name].tokens if t.kind == "name" and t.text in modules and t.text not in needed]
    return list(dict.fromkeys(needed))


def refusal(design: str, testbench: str) -> str:
    """Say why `design` must not be judged beside `testbench`, or return an empty string when it may be."""
    if "\\" in design or '"""' in design:
        return "it has a backslash or a triple quote, which the judge does not read"
    if odd := _PRINTABLE.search(design):
        return f"it has the character {odd.group()!r} outside a comment"
    tokens = tokenize(design)
    bench = tokenize(without_comments(testbench))
    scopes = {"tb"} | set(_scopes(bench))
    names = {token.text for token in bench if token.kind == "name"}
    for index, token in enumerate(tokens):
        if token.kind == "system" and token.text not in SYSTEM_FUNCTIONS:
            return f"it uses the system task or function {token.text}"
        if token.kind == "directive" and token.text not in DIRECTIVES:
            return f"it uses the compiler directive {token.text}"
        if token.text == '"' or (token.text == "`"):
            return f"it has a stray {token.text}"
        if token.kind == "name" and token.text in scopes:
            return f"it names {token.text}, which the testbench declares"
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
