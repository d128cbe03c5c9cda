"""The interpreter and whether its packages are those of the lock that its environment was installed from."""

import os
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.doctor.finding import Finding, fault, note, ok
from crossmesh.environments import VARIABLES, package_root

_SHOWN = 4
_INTERPRETER = "CROSSMESH_PYTHON_"


def check_packages(_spec: ExperimentSpec, lock: str = "") -> Iterator[Finding]:
    """The interpreter, its lock (the one that fits best, or `lock`), and the interpreters that variables name for workers."""
    yield ok("interpreter", f"Python {platform.python_version()}, {sys.executable}")
    yield locked_finding(lock)
    yield from interpreter_findings(os.environ)


def locked_finding(lock: str = "") -> Finding:
    """This interpreter's packages against a file of `requirements/`; empty: the one that it has most of."""
    return lock_finding(package_root().parent / "requirements", installed_versions(), lock)


def installed_versions() -> dict[str, str]:
    """Version of every package of this interpreter, by normalized name."""
    found: dict[str, str] = {}
    for one in distributions():
        found.setdefault(canonicalize_name(one.name), one.version)  # The first on the path is what is imported.
    return found


def lock_finding(folder: Path, installed: Mapping[str, str], name: str = "") -> Finding:
    """Hold `installed` against the lock of `folder` that has most of it, or that is called `name`."""
    files = [file for file in sorted(folder.glob(name or "*.txt")) if not file.name.startswith("overrides")]
    locks = {file: pins(file) for file in files}
    if not locks:
        return note("lock", f"{folder} has no locks: versions cannot be checked")
    lock = max(locks, key=lambda file: sum(1 if package in installed else -1 for package in locks[file]))
    beside = pins(folder / f"overrides-{lock.name}")
    wrong = {
        package: f"{package} {installed.get(package, 'missing')}, wanted {wanted}"
        for package, wanted in {**locks[lock], **beside}.items()
        if package not in installed or not wanted.contains(installed[package], prereleases=True)
    }
    if not wrong:
        return ok("lock", f"{len(locks[lock])} packages as in requirements/{lock.name}")
    shown = "; ".join(list(wrong.values())[:_SHOWN]) + (f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else "")
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    commands = [f"{pip} {package}{beside[package]}" for package in beside if package in wrong]
    if wrong.keys() - beside.keys():
        commands.append(f"{pip} --no-deps --require-hashes -r {shlex.quote(str(lock))}")
    return fault(
        "lock", f"{len(wrong)} of {len(locks[lock])} packages are not as in requirements/{lock.name}: {shown}", " && ".join(commands)
    )


def pins(file: Path) -> dict[str, SpecifierSet]:
    """What a requirements file pins for this interpreter, by normalized name; nothing of a file that does not exist."""
    found: dict[str, SpecifierSet] = {}
    lines = file.read_text(encoding="utf-8").replace("\\\n", " ").splitlines() if file.is_file() else []
    for line in lines:
        text = line.partition(" #")[0].partition(" --hash")[0].strip()
        if text and text[0] not in "#-":
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate():
                found[canonicalize_name(wanted.name)] = wanted.specifier
    return found


def interpreter_findings(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Interpreters of worker environments that do not exist here."""
    for variable in VARIABLES:
        path = environ.get(variable.name, "")
        if variable.name.startswith(_INTERPRETER) and path and not os.access(path, os.X_OK):
            yield fault(variable.name, f"{path} is not an interpreter", f"unset {variable.name}")
