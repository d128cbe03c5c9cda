"""Every command that a message gives can be typed: the job exists, its keys do, `make` has the target, MLflow the subcommand."""

import ast
import dataclasses
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from crossmesh.command.schema import keys_of as own_keys
from crossmesh.command.verbs import verbs
from crossmesh.config.schema import known_keys

ROOT = Path(__file__).resolve().parents[3]
_JOB = re.compile(r"(?:jobs/(?=\w+\.py)|`crossmesh )([a-z]+)(?:\.py)?((?: (?:-m|[\w./@+~-]+=[^\s,;:`)]*))*)")
_MAKE = re.compile(r"`make ([a-z-]+)`")
_MLFLOW = re.compile(r"-m mlflow ([a-z]+) ([a-z]+)")
_KINDS = ("hydra.",)


def texts() -> Iterator[tuple[str, str]]:
    """Every text of the code that is not a docstring, f-strings with `{}` for their values but the jobs that they name."""
    for file in sorted((ROOT / "platform").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            where = f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.JoinedStr):
                yield where, "".join(part.value if isinstance(part, ast.Constant) else named(part.value) or "{}" for part in node.values)
            elif isinstance(node, ast.Call) and (job := named(node)):
                yield where, job
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent | inner:
                yield where, node.value


def named(node: ast.AST) -> str:
    """`jobs/evaluate.py` for `job_command("evaluate")`, which a message prints as its reader calls jobs; of other expressions nothing."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "job_command"
        and isinstance(node.args[0], ast.Constant)
    ):
        return f"jobs/{node.args[0].value}.py"
    return ""


TEXTS = tuple(texts())
COMMANDS = sorted({(where, *match.groups()) for where, text in TEXTS for match in _JOB.finditer(text)})
TARGETS = sorted({(where, match[1]) for where, text in TEXTS for match in _MAKE.finditer(text)})


@cache
def keys_of(job: str, conf: Path) -> frozenset[str]:
    keys = own_keys(job)
    assert dataclasses.is_dataclass(keys)
    groups = {folder.name for folder in conf.iterdir() if folder.is_dir()}
    return frozenset(known_keys(keys, conf)) | groups


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) >= 10
    assert len(TARGETS) >= 3


@pytest.mark.parametrize(("where", "job", "arguments"), COMMANDS)
def test_a_job_that_a_message_names_takes_the_keys_that_it_gives(where: str, job: str, arguments: str, conf: Path) -> None:
    assert job in verbs(), where
    for argument in arguments.split():
        key = argument.lstrip("+~").partition("=")[0]
        if argument != "-m" and not key.startswith(_KINDS):
            assert key in keys_of(job, conf), f"{where}: jobs/{job}.py has no key {key}"


@pytest.mark.parametrize(("where", "target"), TARGETS)
def test_make_has_the_target_that_a_message_names(where: str, target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), where


def test_mlflow_has_the_subcommand_that_a_message_gives() -> None:
    from mlflow.cli import cli

    found = sorted({match.groups() for _, text in TEXTS for match in _MLFLOW.finditer(text)})
    assert ("experiments", "restore") in found
    for group, name in found:
        assert name in cli.commands[group].commands, (group, name)
