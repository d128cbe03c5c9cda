"""Whether this interpreter has the packages that crossmesh needs; imports nothing but the standard library."""

import sys
from importlib.util import find_spec
from pathlib import Path

_NEEDED = ("hydra", "ray", "mlflow", "rich")


def require_packages() -> None:
    """End the process with exit code 2 and one message where packages of crossmesh are missing: the wrong Python runs a job."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if not missing:
        return
    root = Path(__file__).resolve().parents[2]
    own = root / ".venv" / "bin" / "python"
    how = "" if own.is_file() else " (`make install` creates it)"
    print(  # noqa: T201
        f"crossmesh: {sys.executable} does not have the packages of crossmesh ({', '.join(missing)}). "
        f"Run it with the environment of this checkout{how}:\n  {own} {' '.join(sys.argv)}",
        file=sys.stderr,
    )
    sys.exit(2)
