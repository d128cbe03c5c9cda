"""Start a job by its verb; loads nothing but the standard library until it is known which job that is."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from crossmesh import __version__
from crossmesh.command.verbs import screen, unknown, verbs
from crossmesh.installation import require_packages

_BAD_INPUT = 2


def main() -> None:
    """Run `crossmesh VERB ...`."""
    verb = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if verb in ("--help", "-h"):
        _say(screen())
    elif verb == "--version":
        _say(f"crossmesh {__version__}")
    elif verb == "completion":
        _complete(sys.argv[2:])
    elif verb == "schema" and len(sys.argv) > 2:
        print("crossmesh: schema takes no arguments: crossmesh schema > schema.json", file=sys.stderr)  # noqa: T201
        sys.exit(_BAD_INPUT)
    elif verb in (*verbs(), "schema"):
        require_packages()
        del sys.argv[1]  # What follows is the job's own command line.
        _run(verb)
    else:
        print(f"crossmesh: {unknown(verb)}", file=sys.stderr)  # noqa: T201
        sys.exit(_BAD_INPUT)


def run_verb(verb: str) -> None:
    """Run a job with the arguments of this process; ends it with exit code 2 where packages are missing."""
    require_packages()
    _run(verb)


def _run(verb: str) -> None:
    import_module("crossmesh.command.schema" if verb == "schema" else f"crossmesh.jobs.{verb}").main()


def _complete(arguments: Sequence[str]) -> None:
    from crossmesh.command.completion import SHELLS, script, words  # `json` is not needed to start a job.

    if len(arguments) == 2 and arguments[0] == "words":
        _say("\n".join(words(arguments[1])))
    elif len(arguments) == 1 and arguments[0] in SHELLS:
        _say(script(arguments[0]))
    else:
        print("crossmesh: completion is of a shell. Write: source <(crossmesh completion bash), or zsh.", file=sys.stderr)  # noqa: T201
        sys.exit(_BAD_INPUT)


def _say(text: str) -> None:
    try:
        print(text, flush=True)  # noqa: T201
    except BrokenPipeError:  # As `| head` ends it. Python would complain once more when it closes stdout.
        os._exit(0)
