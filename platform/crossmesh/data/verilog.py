"""Find the Verilog in a model's answer. Pure text work with a small lexer; nothing is compiled or run here, and nothing is refused."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from crossmesh.data.markdown import code_blocks, strip_reasoning

_NOT_CODE = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_TOKEN = re.compile(
    r"""
    (?P<string>"(?:\\.|[^"\\\n])*") | (?P<escaped>\\[^\s{}(),;"`]+)
    | (?P<directive>`[A-Za-z_]\w*) | (?P<system>\$[A-Za-z_$][\w$]*) | (?P<name>[A-Za-z_][\w$]*)
    | (?P<number>\d[\d_]*(?:\.\d+)? | '[sS]?(?:[bB]\s*[01xXzZ?_]+|[oO]\s*[0-7xXzZ?_]+|[dD]\s*[\dxXzZ?_]+|[hH]\s*[\da-fA-FxXzZ?_]+))
    | (?P<other>\S)
    """,
    re.VERBOSE,
)


_WORDS = frozenset(
    ("module", "macromodule", "endmodule", "program", "interface", "package", "class", "task", "function", "begin", "fork", "import")
)
"""Words that mean something to who reads tokens here; escaped they are names."""


@dataclass(frozen=True)
class Token:
    """One token and where it stands in its text."""

    kind: str
    """`string`, `directive`, `system`, `name`, `escaped`, `number` or `other`."""
    text: str
    """As it stands; an escaped name that needs no backslash is a `name` without one, as the language has it."""
    start: int
    end: int


_PLAIN_NAME = re.compile(r"[A-Za-z_][\w$]*")


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

    @property
    def has_ports(self) -> bool:
        """Whether the header names a port: `module tb;` and `module tb();` name none."""
        words = [token.text for token in self.tokens]
        header = words[: words.index(";")] if ";" in words else words
        return len(header) > 1 and header[-1] == ")" and header[-2] != "("


@dataclass(frozen=True)
class Extraction:
    """What was found in an answer for a wanted module."""

    design: str = ""
    """Source text without comments: the wanted module, the modules it needs and, from a fence, what stands between modules."""
    problem: str = ""
    """Empty, or why there is nothing to simulate: `no_module`, `truncated`, `wrong_module` or `empty_module`."""


def tokenize(text: str) -> tuple[Token, ...]:
    """Split comment-free Verilog into tokens."""
    return tuple(_token(match) for match in _TOKEN.finditer(text))


def _token(match: re.Match[str]) -> Token:
    kind, text = str(match.lastgroup), match.group()
    if kind == "escaped" and _PLAIN_NAME.fullmatch(text, 1) and text[1:] not in _WORDS:
        kind, text = "name", text[1:]
    return Token(kind, text, match.start(), match.end())


def without_comments(text: str) -> str:
    """Replace comments by spaces, newlines kept; strings are left alone. Positions stay as they were."""
    return _NOT_CODE.sub(lambda match: match.group() if match.group().startswith('"') else re.sub(r"[^\n]", " ", match.group()), text)


def extract(answer: str, wanted: str, header: str = "") -> Extraction:
    """Find the module `wanted` in an answer: in its code fences, closed or not, or else in its plain text.

    Reasoning is ignored. When a module is given more than once the last complete one counts. Modules that `wanted`
    does not need, such as a testbench of the model's own, are left out. With a `header`, how the module begins, an answer that goes on from
    there is taken as well as one that begins anew.
    """
    text = strip_reasoning(answer)
    fenced = [without_comments(block.code) for block in code_blocks(text)]
    plain = without_comments(text.replace("```", "   "))
    readings = [_read(fenced, keep_between=True), _read([plain], keep_between=False)]
    if header:
        start = without_comments(header).rstrip() + "\n"
        readings += [_read([start + block for block in fenced], keep_between=False), _read([start + plain], keep_between=False)]
    for reading in readings:
        if wanted in reading.modules:
            needed = reachable(reading.modules, wanted)
            design = "\n".join([reading.between[wanted], *(reading.modules[name].text for name in needed)]) + "\n"
            return Extraction(design, "empty_module" if reading.modules[wanted].empty else "")
    begun = any(reading.begun for reading in readings)
    return Extraction(problem="truncated" if begun else "wrong_module" if any(r.modules for r in readings) else "no_module")


@dataclass(frozen=True)
class _Reading:
    """The modules that an answer has when it is read in one way."""

    modules: dict[str, Module]
    between: dict[str, str]
    """What stands between the modules of the block that a module is from."""
    begun: bool
    """Whether a module was begun and never ended."""


def _read(blocks: Sequence[str], *, keep_between: bool) -> _Reading:
    """Collect the modules of comment-free `blocks`, the last of each name."""
    modules: dict[str, Module] = {}
    between: dict[str, str] = {}
    begun = False
    for block in blocks:
        found, rest, unfinished = _split(block)
        begun = begun or unfinished
        for module in found:
            modules[module.name] = module
            between[module.name] = rest if keep_between else ""
    return _Reading(modules, between, begun)


def modules_of(code: str) -> list[Module]:
    """Return the complete modules of comment-free Verilog, in order."""
    return _split(code)[0]


def module_texts(text: str, names: Sequence[str]) -> list[str]:
    """Return the last of each module of `names` as `text` has it, comments included, in the order of the text."""
    modules = modules_of(without_comments(text.replace("```", "   ")))
    last = {module.name: module for module in modules}
    found = sorted((last[name].tokens[0].start, last[name].tokens[-1].end) for name in names if name in last)
    return [text[start:end] for start, end in found]


def hollow(design: str, module: str) -> str:
    """Return `module` of `design` with its ports and nothing in it: a solution that is known to be wrong.

    Raises:
        ValueError: `design` has no such module.
    """
    code = without_comments(design)
    tokens = tokenize(code)
    for index, token in enumerate(tokens):
        if _declares_module(tokens, index) and tokens[index + 1].text == module:
            end = next((later.end for later in tokens[index:] if later.text == ";"), None)
            if end is not None:
                return f"{code[token.start : end]}\nendmodule\n"
    raise ValueError(f"There is no module {module}.")


def renamed(design: str, old: str, new: str) -> str:
    """Return `design` with the name `old` replaced by `new` wherever it is a name of its own; comments are left out."""
    code = without_comments(design)
    places = [token for token in tokenize(code) if token.kind == "name" and token.text == old]
    for token in reversed(places):
        code = code[: token.start] + new + code[token.end :]
    return code


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


def reachable(modules: dict[str, Module], wanted: str) -> list[str]:
    """Names of the modules that `wanted` mentions, directly or through others, and its own."""
    needed = [wanted]
    for name in needed:
        needed += [t.text for t in modules[name].tokens if t.kind == "name" and t.text in modules and t.text not in needed]
    return list(dict.fromkeys(needed))
