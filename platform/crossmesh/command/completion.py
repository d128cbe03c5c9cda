"""Completion of a command line for bash and zsh, from the files of `conf/` and its `schema.json`; loads nothing but the standard library.

Hydra's own completion imports Hydra and composes the whole configuration for each Tab.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from crossmesh.command.verbs import verbs
from crossmesh.installation import conf_folder

SHELLS = ("bash", "zsh")
OTHERS = ("completion", "schema")
"""Verbs that are no jobs."""
_FLAGS = ("--help", "--help-all", "--cfg", "-m")
_BASH = """_crossmesh() {
    local IFS=$'\\n'
    COMPREPLY=($("${COMP_WORDS[0]/#\\~/$HOME}" completion words "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
    # Readline replaces what follows the last = or : only.
    local word="${COMP_LINE:0:COMP_POINT}"; word="${word##*[[:space:]]}"
    local kept="${word%"${word##*[=:]}"}"
    COMPREPLY=("${COMPREPLY[@]#"$kept"}")
}
complete -o nospace -o default -F _crossmesh crossmesh
"""
_ZSH = """#compdef crossmesh
_crossmesh() {
    local -a found
    found=("${(@f)$("${words[1]}" completion words "${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null)}")
    [[ -n "${found[1]}" ]] && compadd -Q -S '' -a found || _files
}
compdef _crossmesh crossmesh
"""


def script(shell: str) -> str:
    """What a shell reads to complete `crossmesh`: `source <(crossmesh completion bash)`."""
    return {"bash": _BASH, "zsh": _ZSH}[shell]


def words(line: str) -> list[str]:
    """What the last word of a command line can become, in full; what is complete ends with a space."""
    before, current = _split(line)
    if len(before) == 1:
        return _matching(current, (f"{verb} " for verb in (*verbs(), *OTHERS)))
    verb = before[1]
    if verb == "completion":
        return _matching(current, (f"{shell} " for shell in SHELLS))
    if verb not in verbs():
        return []
    if before[-1] in ("--cfg", "-c"):
        return _matching(current, ("job ",))
    if current.startswith("-"):
        return _matching(current, (f"{flag} " for flag in _FLAGS))
    schema = json.loads((conf_folder() / "schema.json").read_text(encoding="utf-8"))
    key, separator, value = current.partition("=")
    if not separator:
        return _keys(schema, verb, current)
    listed, comma, last = value.rpartition(",")  # A sweep (-m), or a list in brackets.
    head = f"{key}={listed}{comma}"
    opened = "[" if last.startswith("[") else ""
    inside = opened or value.startswith("[")
    return [f"{head}{opened}{one}{'' if inside else ' '}" for one in _matching(last.removeprefix(opened), _values(schema, verb, key))]


def _split(line: str) -> tuple[list[str], str]:
    parts = line.split()
    return (parts, "") if line[-1:].isspace() else (parts[:-1], parts[-1] if parts else "")


def _matching(begun: str, candidates: Iterable[str]) -> list[str]:
    return sorted({one for one in candidates if one.startswith(begun)})


def _options(group: str) -> list[str]:
    return [file.stem for file in (conf_folder() / group).glob("*.yaml")] if group.isidentifier() and group != "job" else []


def _properties(schema: Mapping[str, Any], verb: str) -> dict[str, Any]:
    """Keys of the verb at the root: its own and those of the spec."""
    own = schema["$defs"][f"job {verb}"]["properties"]
    others = {key for name, one in schema["$defs"].items() if name.startswith("job ") for key in one["properties"]}
    spec = {key: schema["$defs"].get(key, one) for key, one in schema["properties"].items() if key not in others and key != "defaults"}
    return {**spec, **own}


def _keys(schema: Mapping[str, Any], verb: str, begun: str) -> list[str]:
    """Keys and groups one level below what is typed."""
    parent, dot, _ = begun.rpartition(".")
    found: Mapping[str, Any] = {"properties": _properties(schema, verb)}
    for name in parent.split(".") if parent else ():
        found = found.get("properties", {}).get(name, {})
    return _matching(begun, (f"{parent}{dot}{one}" for one in _level(found, top=not parent)))


def _level(found: Mapping[str, Any], *, top: bool) -> Iterator[str]:
    groups = {folder.name for folder in conf_folder().iterdir() if folder.is_dir() and _options(folder.name)} if top else set()
    for name, one in found.get("properties", {}).items():
        if name == "defaults":  # Of a file, not of a command line.
            continue
        yield f"{name}." if "properties" in one else f"{name}="
        if name in groups:
            yield f"{name}="
    if top:
        yield "experiment="


def _values(schema: Mapping[str, Any], verb: str, key: str) -> list[str]:
    """What a key takes, or the files of a group."""
    if options := _options(key):
        return options
    found: Mapping[str, Any] = {"properties": _properties(schema, verb)}
    for name in key.split("."):
        found = found.get("properties", {}).get(name, {})
    return list(_allowed(found))


def _allowed(found: Mapping[str, Any]) -> Iterator[str]:
    if found.get("type") == "boolean":
        yield from ("true", "false")
    if found.get("type") == "null":
        yield "null"
    yield from (one for one in (*found.get("enum", ()), *found.get("examples", ())) if one)
    for part in (*found.get("anyOf", ()), *([found["items"]] if "items" in found else ())):
        yield from _allowed(part)
