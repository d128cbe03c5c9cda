"""The generated pages of the reference, as one JSON object on stdout: Markdown by path below `docs/`.

Keys, types, defaults and descriptions come from the dataclasses under `config/`, classes from `config/classes.py`, verbs from the modules
of `jobs/`, variables from `environments.py`. It runs in the environment of jobs; the site is built in one of its own.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from crossmesh.command.schema import keys_of
from crossmesh.command.verbs import verbs
from crossmesh.config.classes import KEY_CLASSES
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.help import description
from crossmesh.environments import VARIABLES
from crossmesh.hardware.catalogue import slices

_CONF = Path(__file__).parents[2] / "conf"


def main() -> None:
    """Print all pages."""
    pages = {"keys": _keys(), "commands": _commands(), "environment": _environment(), "hardware": _hardware()}
    json.dump({f"reference/{name}.md": "\n".join(lines) + "\n" for name, lines in pages.items()}, sys.stdout)


def _keys() -> Iterator[str]:
    yield "# Key reference\n"
    yield (
        "Every key of an experiment, by group. Write `group.key=value` on the command line, and `group=file` for a file of a group. "
        "The class says what a key decides: *science* what is learned, *system* how fast, *evaluation* how a model is evaluated or a "
        "server loaded, *provenance* how the job is run ([glossary](../glossary.md)).\n"
    )
    yield from _table(ExperimentSpec, "", classes=True, groups=False)
    hints = get_type_hints(ExperimentSpec)
    for one in fields(ExperimentSpec):
        if is_dataclass(hints[one.name]):
            yield f"\n## {one.name}\n"
            yield _first_line(hints[one.name]) + "\n"
            if files := sorted(file.stem for file in (_CONF / one.name).glob("*.yaml")):
                yield f"Files (`{one.name}=NAME`): {', '.join(f'`{file}`' for file in files)}.\n"
            yield from _table(hints[one.name], f"{one.name}.", classes=True)


def _table(kind: Any, prefix: str, *, classes: bool, groups: bool = True) -> Iterator[str]:
    """A row for each key of a dataclass and, with `groups`, of those within it."""
    yield "| key | type | default | " + ("class | " if classes else "") + "what it does |"
    yield "| --- " * (5 if classes else 4) + "|"
    yield from _rows(kind, prefix, classes, groups)


def _rows(kind: Any, prefix: str, classes: bool, groups: bool) -> Iterator[str]:
    hints = get_type_hints(kind)
    for one in fields(kind):
        key, hint = f"{prefix}{one.name}", hints[one.name]
        if is_dataclass(hint):
            yield from _rows(hint, f"{key}.", classes, groups) if groups else ()
            continue
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        cells = [f"`{key}`", f"`{_type(hint)}`", _default(default), *([", ".join(KEY_CLASSES[key])] if classes else [])]
        yield "| " + " | ".join([*cells, _cell(description(one.name, kind))]) + " |"


def _commands() -> Iterator[str]:
    yield "# Command reference\n"
    yield (
        "`crossmesh VERB ...` and `python jobs/VERB.py ...` are the same. Each takes `--help`, `--help-all`, `--cfg job`, `-m` (a sweep), "
        "all keys of the [key reference](keys.md), and its own below. Exit codes: 0 done, 2 bad input, 3 rejected before start, "
        "4 budget reached, 130 interrupted, 1 everything else.\n"
    )
    for verb in verbs():
        yield f"\n## {verb}\n"
        yield (import_module(f"crossmesh.jobs.{verb}").__doc__ or "").strip() + "\n"
        yield from _table(keys_of(verb), "", classes=False)


def _environment() -> Iterator[str]:
    yield "# Environment variables\n"
    yield "*read*: yours to set. *set*: set by crossmesh for a process that it starts. *both*: set unless you did.\n"
    yield "| variable | used | why |"
    yield "| --- | --- | --- |"
    for one in VARIABLES:
        yield f"| `{one.name}` | {one.used}{', secret' if one.secret else ''} | {_cell(one.reason)} |"


def _hardware() -> Iterator[str]:
    yield "# Hardware\n"
    yield (
        "Choose with `hardware=NAME`. Prices, chips and their sources are in "
        "[the catalogue](../../platform/crossmesh/hardware/catalogue.yaml); `hardware.catalogue=FILE` adds your own.\n"
    )
    yield "| hardware | device | chips | default backend | USD per hour, on demand |"
    yield "| --- | --- | --- | --- | --- |"
    for name, one in sorted(slices().items()):
        price = one.price("on_demand")
        read = price and (price.read or "date not known")
        shown = f"{price.usd_per_hour:g} ({price.region or 'region not stated'}, {read}) {price.unsold}".strip() if price else ""
        yield f"| `{name}` | {type(one.device).__name__} | {one.device.chip_count()} | {one.default_backend} | {_cell(shown)} |"


def _first_line(kind: Any) -> str:
    return (kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")


def _type(hint: Any) -> str:
    return (hint.__name__ if isinstance(hint, type) and not getattr(hint, "__args__", ()) else str(hint)).replace("|", "or")


def _default(value: Any) -> str:
    if value is MISSING:
        return "required"
    if value == "" or value == () or value == {}:
        return "empty"
    return f"`{json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False, default=str)}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


if __name__ == "__main__":
    main()
