"""Whether generated code can be judged here: the sandbox, by its own probe, and the simulator."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.doctor.finding import Finding, fault, note, ok
from crossmesh.environments import package_root
from crossmesh.errors import InputError
from crossmesh.evaluate.judge import SIMULATOR, simulator_version
from crossmesh.evaluate.sandbox import open_sandbox

_RESTRICTED = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")


def check_judging(spec: ExperimentSpec) -> Iterator[Finding]:
    """Sandbox and simulator."""
    yield sandbox_finding(spec.eval.sandbox, _RESTRICTED)
    try:
        yield ok("simulator", simulator_version())
    except InputError as error:
        yield fault("simulator", str(error).partition(". ")[0], "sudo apt-get install -y iverilog")


def sandbox_finding(name: str, restricted: Path) -> Finding:
    """What `open_sandbox` says; `restricted` is the kernel's switch that keeps programs without an AppArmor profile from namespaces."""
    if name == "none":
        return note("sandbox", "eval.sandbox=none: generated code runs unprotected", "eval.sandbox=bubblewrap")
    try:
        sandbox = open_sandbox(name, SIMULATOR)
    except InputError as error:
        found = str(error).partition(". ")[0]
        if shutil.which("bwrap") is None:
            return fault("sandbox", found, "sudo apt-get install -y bubblewrap")
        script = package_root().parent / "requirements" / "install-judge.sh"
        if _is_on(restricted):
            found += f". {restricted.name}=1: bubblewrap needs an AppArmor profile, which the script installs"
            return fault("sandbox", found, f"bash {script}")
        return fault("sandbox", found, f"bash {script}    # a container: docker run --security-opt seccomp=unconfined")
    return ok("sandbox", f"{sandbox.kind} works")


def _is_on(switch: Path) -> bool:
    try:
        return switch.read_text(encoding="ascii").strip() == "1"
    except OSError:
        return False
