"""Where this package runs from, a checkout or an installed wheel: its config groups, how its jobs are called, what its interpreter lacks.

Imports nothing but the standard library: all of this is asked before anything else is known to be there.
"""

import re
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from crossmesh import __version__

_PACKAGE = Path(__file__).resolve().parent
_NEEDED = ("hydra", "ray", "mlflow", "rich")
_JOB = re.compile(r"\bjobs/(?P<script>\w+)\.py\b|(?:/bin/|-m )crossmesh (?P<verb>[a-z]+)(?=\s|$)")


def checkout() -> Path | None:
    """The checkout that this package runs from; None for an installed wheel."""
    root = _PACKAGE.parents[1]
    return root if _PACKAGE.parent.name == "platform" and (root / "conf" / "config.yaml").is_file() else None


def conf_folder() -> Path:
    """The folder of the config groups: `conf/` of the checkout, of an installed wheel its copy inside the package."""
    root = checkout()
    return root / "conf" if root else _PACKAGE / "conf"


def job_command(verb: str) -> str:
    """How whoever started this process starts a job: `crossmesh VERB`, by the path that they gave, or `python jobs/` and its script."""
    program = Path(sys.argv[0])
    if "crossmesh" in (program.name, program.resolve().name):
        found = shutil.which("crossmesh")
        return f"crossmesh {verb}" if found and program.resolve() == Path(found).resolve() else f"{shlex.quote(sys.argv[0])} {verb}"
    if program.name == "__main__.py" and program.resolve().parent == _PACKAGE:
        return f"python -m crossmesh {verb}"
    return f"python jobs/{verb}.py" if checkout() else f"crossmesh {verb}"


def job_of(command_line: str) -> str | None:
    """The job that a process with this command line runs; None: it is not one of ours."""
    found = _JOB.search(command_line)
    verb = (found["script"] or found["verb"]) if found else ""
    return verb if verb and (_PACKAGE / "jobs" / f"{verb}.py").is_file() else None


def require_packages() -> None:
    """End the process with exit code 2 and one message where packages of crossmesh are missing: the wrong Python runs a job."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if not missing:
        return
    root = checkout()
    if root is None:
        how = f"Install them:\n  {sys.executable} -m pip install crossmesh=={__version__}"
    else:
        own = root / ".venv" / "bin" / "python"
        made = "" if own.is_file() and own != Path(sys.executable) else " (`make install` creates it)"
        match Path(sys.argv[0]).name:
            case "crossmesh":
                started = [str(own.with_name("crossmesh"))]
            case "__main__.py":
                started = [str(own), "-m", "crossmesh"]
            case _:
                started = [str(own), sys.argv[0]]
        how = f"Run it with the environment of this checkout{made}:\n  {shlex.join([*started, *sys.argv[1:]])}"
    print(  # noqa: T201
        f"crossmesh: {sys.executable} does not have the packages of crossmesh ({', '.join(missing)}). {how}", file=sys.stderr
    )
    sys.exit(2)
