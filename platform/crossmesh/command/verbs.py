"""The verbs of `crossmesh`, each a module of `crossmesh.jobs`, and the screen that lists them; what each says is its own docstring."""

import ast
import difflib
import textwrap
from pathlib import Path

from crossmesh import __version__
from crossmesh import jobs as _jobs

COLUMNS = 80
_FOLDER = Path(_jobs.__file__).parent


def verbs() -> tuple[str, ...]:
    """The names of all jobs."""
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.py") if not file.stem.startswith("_")))


def line_of(verb: str) -> str:
    """What a job does, in the first words of its module."""
    text = ast.get_docstring(ast.parse((_FOLDER / f"{verb}.py").read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].partition(": `")[0].rstrip(".:").replace("`", "")


def screen() -> str:
    """What `crossmesh --help` shows."""
    wide = len("completion") + 2
    listed = [f"  {verb:{wide}}{textwrap.shorten(line_of(verb), COLUMNS - wide - 2, placeholder='...')}" for verb in verbs()]
    return "\n".join(
        [
            f"crossmesh {__version__}: decide, with proof, on which hardware, sharding and",
            "configuration to fine-tune and serve a language model.",
            "Usage: crossmesh VERB [group=file] [key=value] ...",
            "",
            *listed,
            f"  {'completion':{wide}}Print what bash or zsh needs to complete verbs, groups and keys",
            f"  {'schema':{wide}}Print the JSON schema of the files under conf/, for editors",
            "",
            "crossmesh VERB --help shows the keys of a verb, --help-all those of every group,",
            "--cfg job what a command line resolves to; -m sweeps a=1,2.",
            "Docs: README.md and docs/ of the source. First: crossmesh doctor",
        ]
    )


def unknown(verb: str) -> str:
    """What is wrong with a verb that does not exist, and which may be meant."""
    known = (*verbs(), "completion", "schema")
    close = difflib.get_close_matches(verb, known, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"the verb {verb!r} does not exist.{hint} Allowed: {', '.join(known)}. crossmesh --help says what each does."
