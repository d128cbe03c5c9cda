"""A benchmark of one's own: problems from folders (prompt, testbench, reference, and what the testbench reads) or from the lines of a file.

RTLLM's folders are such folders as they are. A testbench says with a text of its own that all is well; that text gets the judge's nonce, so
that a design which prints it too says nothing. A problem that cannot be judged with is kept, with its defect, and left out by name.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossmesh.data.columns import has_surrogates
from crossmesh.data.verilog import Token, modules_of, renamed, tokenize, without_comments
from crossmesh.errors import InputError, reading
from crossmesh.evaluate.problems import DESIGN, NONCE, SUPPORT, TESTBENCH, Problem

PROMPTS = ("prompt.txt", "prompt.md", "design_description.txt")
BENCHES = ("testbench.sv", "testbench.v", "tb.sv", "tb.v")
REFERENCES = ("reference.sv", "reference.v", "verified_*.sv", "verified_*.v")
KEYS = {"prompt": ("prompt",), "testbench": ("testbench", "tests", "test"), "reference": ("reference", "solution", "canonical_solution")}
"""Names that a line may give each part; `id` (or `name`, `task_id`), `split`, `success_text` and `files` are read too."""
_IDS = ("id", "name", "task_id")
FORM = (
    f"a folder that has for each problem a folder with a prompt ({', '.join(PROMPTS)}), a testbench ({', '.join(BENCHES)}) and a "
    f"reference ({', '.join(REFERENCES)}), or a .jsonl file with the keys prompt, testbench (or tests) and reference on each line"
)
_SPLIT = "problems"
_VERIFIED = "verified_"
_LARGEST = 1 << 20
_WAVES = (".vcd", ".fst", ".lxt", ".fsdb")
"""What a testbench writes and does not read."""


@dataclass(frozen=True)
class Parts:
    """A problem as its owner wrote it down."""

    id: str
    prompt: str
    testbench: str
    reference: str
    success_text: str
    split: str = _SPLIT
    files: Mapping[str, str] = field(default_factory=dict)


def load_problems(path: str, success_text: str, system_prompt: str) -> tuple[Problem, ...]:
    """Return the problems in `path`, by name: a folder or a JSONL file.

    Raises:
        InputError: there is none, it is in another form, or two problems have one name.
    """
    given = Path(path).expanduser()
    if not path or not given.exists():
        raise InputError(f"eval.path={path!r} does not exist. Needed: {FORM}.")
    found = sorted(_of_folders(given, success_text) if given.is_dir() else _of_lines(given, success_text), key=lambda one: one.id)
    if not found:
        raise InputError(f"eval.path={path!r} has no problems. Needed: {FORM}.")
    names = [one.id for one in found]
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise InputError(f"eval.path={path!r} has more than one problem named {', '.join(twice)}. Give each a name of its own.")
    return tuple(problem_of(one, system_prompt) for one in found)


def _of_folders(root: Path, success_text: str) -> Iterator[Parts]:
    for folder in sorted({file.parent for name in PROMPTS for file in root.rglob(name)}):
        with reading(folder, "a prompt, a testbench and a reference in UTF-8"):
            prompt, bench, reference = (_first(folder, names) for names in (PROMPTS, BENCHES, REFERENCES))
            text = _text(bench)
            others = [file for file in sorted(folder.iterdir()) if file.is_file() and file not in (prompt, bench, reference)]
            files = {file.name: _text(file) for file in others if file.name in text and file.suffix not in _WAVES}
            yield Parts(folder.name, _text(prompt), text, _text(reference), success_text, files=files)


def _first(folder: Path, names: Sequence[str]) -> Path | None:
    return next((file for name in names for file in sorted(folder.glob(name))), None)


def _text(file: Path | None) -> str:
    if file is None:
        return ""
    if file.stat().st_size > _LARGEST:
        raise ValueError(f"{file.name} has over {_LARGEST} bytes")
    return file.read_text(encoding="utf-8-sig")


def _of_lines(file: Path, success_text: str) -> Iterator[Parts]:
    with reading(file, FORM):
        for number, line in enumerate(file.read_text(encoding="utf-8-sig").split("\n"), start=1):
            if line.strip():
                yield _of_line(json.loads(line), number, success_text)


def _of_line(row: Any, number: int, success_text: str) -> Parts:
    if not isinstance(row, dict):
        raise ValueError(f"line {number} is not a JSON object")
    if has_surrogates(row):
        raise ValueError(f"line {number} holds half of a surrogate pair (\\ud800 to \\udfff), which is not text")
    parts = {}
    for part, names in KEYS.items():
        name = next((name for name in names if name in row), None)
        if name is None:
            raise ValueError(f"line {number} has no {' or '.join(names)}; it has {', '.join(map(str, row))}")
        if not isinstance(row[name], str):
            raise ValueError(f"line {number}: {name} has the wrong type: expected str, got {type(row[name]).__name__}")
        parts[part] = row[name]
    files = row.get("files") or {}
    if not (isinstance(files, dict) and all(isinstance(text, str) and re.fullmatch(r"\w[\w.-]*", name) for name, text in files.items())):
        raise ValueError(f"line {number}: files must map plain names to texts")
    name = next((str(row[key]) for key in _IDS if row.get(key) is not None), f"line_{number:04}")
    return Parts(
        name, **parts, success_text=str(row.get("success_text") or success_text), split=str(row.get("split") or _SPLIT), files=files
    )


def problem_of(parts: Parts, system_prompt: str) -> Problem:
    """The problem, with its defect where it cannot be judged with."""
    system = ({"role": "system", "content": system_prompt},) if system_prompt else ()
    messages = (*system, {"role": "user", "content": parts.prompt.strip()})
    try:
        reference, module, top = _modules(parts)
        bench = _with_nonce(parts)
    except ValueError as error:
        return Problem(parts.id, messages, parts.reference, parts.testbench, parts.split, "", defect=str(error))
    return Problem(parts.id, messages, reference, bench, parts.split, module, top=top, files=parts.files)


def _modules(parts: Parts) -> tuple[str, str, str]:
    """The reference under the name that its testbench asks for, that name, and the testbench's top. Raises `ValueError`."""
    for part in ("prompt", "testbench", "reference"):
        if not getattr(parts, part).strip():
            raise ValueError(f"it has no {part}")
    if taken := sorted({TESTBENCH, SUPPORT, DESIGN} & parts.files.keys()):
        raise ValueError(f"its file {taken[0]} has a name that the judge uses; rename it")
    code = without_comments(parts.testbench)
    declared = {module.name: module for module in modules_of(code)}
    reference, module = parts.reference, ""
    for own in [one.name for one in modules_of(without_comments(reference))]:
        wanted = own.removeprefix(_VERIFIED)
        if top := next((name for name, one in declared.items() if {own, wanted} & _names(one.tokens[2:])), ""):
            module = own if own in _names(declared[top].tokens[2:]) else wanted
            reference = renamed(reference, own, module) if module != own else reference
            break
    if not module:
        raise ValueError("its testbench instantiates no module of its reference")
    if module in declared:
        raise ValueError(f"its testbench has a module {module} of its own")
    used = set().union(*(_names(one.tokens[2:]) - {one.name} for one in declared.values()))
    roots = [name for name, one in declared.items() if name not in used and not one.has_ports]
    if len(roots) != 1:
        raise ValueError(f"its testbench has {len(roots)} top modules without ports; one is needed")
    return reference, module, roots[0]


def _names(tokens: Sequence[Token]) -> set[str]:
    return {token.text for token in tokens if token.kind == "name"}


def _with_nonce(parts: Parts) -> str:
    """The testbench with the nonce, on a line of its own, in every text that says that all is well. Raises `ValueError` without one."""
    code, found = without_comments(parts.testbench), False
    for token in reversed(tokenize(code)):
        if token.kind == "string" and parts.success_text in token.text:
            said = token.text.replace(parts.success_text, f"\\nPASS {NONCE}\\n")
            code, found = code[: token.start] + said + code[token.end :], True
    if not found:
        raise ValueError(f"its testbench never prints {parts.success_text!r}; set eval.success_text to what it prints")
    return code
