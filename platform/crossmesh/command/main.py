"""Start a job by its verb; loads nothing but the standard library until it is known which job that is."""

import sys
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
    elif verb in verbs():
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
    import_module(f"crossmesh.jobs.{verb}").main()


def _say(text: str) -> None:
    print(text)  # noqa: T201
