"""`crossmesh ui` of this checkout, for `ray job submit` and wherever the package is not installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))

from crossmesh.command.main import run_verb

if __name__ == "__main__":
    run_verb("ui")
