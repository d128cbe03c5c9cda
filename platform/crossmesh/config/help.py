"""`--help` of a job on one screen: what it does, its own keys, the main keys and groups, and how all others are shown.

Descriptions are those of the dataclasses; nothing is described twice.
"""

import ast
import inspect
import textwrap
from collections.abc import Sequence
from dataclasses import is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.schema import names, schema, type_of
from crossmesh.installation import job_command

LINES, COLUMNS = 40, 80
_NAME = 27
_ALL = ("model.weights", "data.source", "optim.steps", "optim.learning_rate", "batch.size", "lora.rank", "storage.root", "tracking.uri")
_SERVE = ("model.weights", "serve.adapters", "serve.port", "serve.max_model_len", "serve.tp", "storage.root")
MAIN: dict[str, tuple[str, ...]] = {
    "serve": _SERVE,
    "benchmark": ("bench.url", *_SERVE),
    "evaluate": ("eval.url", "eval.max_tokens", *_SERVE),
    "plan": ("plan.max_usd", "plan.max_hours", "plan.workload", *_ALL),
    "compare": ("storage.root", "tracking.uri"),
    "doctor": ("storage.root", "tracking.uri", "eval.sandbox", "hardware.catalogue", "plan.price", "plan.region"),
    "status": ("storage.root", "tracking.uri"),
    "ui": ("storage.root", "tracking.uri"),
    "export": ("model.weights", "storage.root", "tracking.uri"),
}
"""The keys of the spec that people set most, by job; of the others `_ALL`."""
GROUPS = ("experiment", "model", "data", "lora", "mesh", "packing", "hardware", "backend", "serve", "bench", "eval", "tune")


def help_text(verb: str, doc: str, keys: type[Any], conf: Path) -> str:
    """Return the screen of `crossmesh <verb>`, whose module says `doc` of itself."""
    called = job_command(verb)
    said = doc.replace("`", "").replace(f"crossmesh {verb} ", f"{called} ")
    head = [*_wrapped(f"crossmesh {verb}: {said}"), f"Usage: {called} [group=file] [key=value] ..."]
    own = [_line(name, getattr(keys(), name), description(name, keys)) for name in names(keys)]
    foot = [
        "-m sweeps a=1,2. --cfg job prints what a command line resolves to.",
        "--help-all shows every group and key. docs/ explains them.",
    ]
    groups = [line for name in GROUPS if (name != "tune" or verb == "tune") and (line := _group(name, conf))]
    room = LINES - len(head) - len(own) - len(foot) - len(groups) - 6
    main = [_line(key, _default(key), description(key, keys)) for key in MAIN.get(verb, _ALL)[: max(room, 0)]]
    parts = [*head, "", "Keys of this job:", *own, "", "Main keys:", *main, "", "Groups:", *groups, *foot]
    return "\n".join(parts)


def description(key: str, keys: type[Any]) -> str:
    """What the dataclass says of a dotted key."""
    parent, _, name = key.rpartition(".")
    kind = type_of(parent, keys) if parent else keys if name in names(keys) else ExperimentSpec
    return next((found[name] for one in kind.__mro__ if name in (found := _docs(one))), "")


def _docs(kind: type[Any]) -> dict[str, str]:
    """The texts below the fields of a dataclass."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except (OSError, TypeError, SyntaxError):
        return {}
    lines = getattr(body, "body", [])
    found = {}
    for field, text in pairwise(lines):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split()).replace("`", "")
    return found


def _default(key: str) -> Any:
    return OmegaConf.select(schema(ExperimentSpec), key)


def _line(key: str, default: Any, text: str) -> str:
    if is_dataclass(default):
        return _line(f"{key}.KEY", "", (type(default).__doc__ or "").partition("\n")[0])
    plain = isinstance(default, str | int | float)
    shown = (str(default).lower() if isinstance(default, bool) else str(default)) if plain else ""
    name = f"{key}={shown}"
    name = f"{key}=" if len(name) > _NAME and len(shown) > 8 else name
    return f"  {name:{_NAME}} {textwrap.shorten(text, COLUMNS - _NAME - 3, placeholder='...')}".rstrip()


def _group(name: str, conf: Path) -> str:
    options = sorted(file.stem for file in (conf / name).glob("*.yaml"))
    listed = textwrap.shorten(", ".join(options), COLUMNS - 3 - len(name), placeholder=" ...")
    return f"  {name}={listed}" if len(options) > 1 else ""


def _wrapped(text: str) -> Sequence[str]:
    return textwrap.wrap(text, COLUMNS)
