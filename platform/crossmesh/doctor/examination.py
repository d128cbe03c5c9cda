"""All checks of a machine in order, side by side and within a time; what does not answer in it is a finding too."""

import threading
from collections.abc import Callable, Iterable, Sequence

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.doctor.accelerators import check_accelerators
from crossmesh.doctor.finding import Finding, note
from crossmesh.doctor.judging import check_judging
from crossmesh.doctor.listeners import check_listeners
from crossmesh.doctor.machine import check_clock, check_disks, check_memory
from crossmesh.doctor.packages import check_packages
from crossmesh.doctor.private_files import check_private_files
from crossmesh.doctor.services import check_hub, check_tracking
from crossmesh.doctor.storage import check_storage

Check = Callable[[ExperimentSpec], Iterable[Finding]]

OF_A_MACHINE: tuple[Check, ...] = (
    check_packages,
    check_disks,
    check_memory,
    check_storage,
    check_listeners,
    check_private_files,
    check_judging,
    check_tracking,
    check_hub,
    check_accelerators,
    check_clock,
)
"""Each is about the machine that it runs on, whichever that is, and needs a spec only."""
_WITHIN_S = 8.0


def examine(spec: ExperimentSpec, checks: Sequence[Check] = OF_A_MACHINE, within_s: float = _WITHIN_S) -> tuple[Finding, ...]:
    """Run all checks at once and return their findings in the order of `checks`, those that have come after `within_s`.

    A check that breaks ends the others' wait: it raises here, as it is a bug.
    """
    found: list[tuple[Finding, ...]] = [(note(_title(one), f"no answer within {within_s:g} s"),) for one in checks]
    broken: list[Exception] = []

    def run(index: int, check: Check) -> None:
        try:
            found[index] = tuple(check(spec))
        except Exception as error:  # noqa: BLE001  # Raised again below.
            broken.append(error)

    # Daemons: a name server that does not answer must not keep the process.
    threads = [threading.Thread(target=run, args=one, daemon=True, name=f"doctor-{one[0]}") for one in enumerate(checks)]
    for thread in threads:
        thread.start()
    left = threading.Event()
    timer = threading.Timer(within_s, left.set)
    timer.daemon = True
    timer.start()
    for thread in threads:
        while thread.is_alive() and not left.is_set():
            thread.join(0.05)
    timer.cancel()
    if broken:
        raise broken[0]
    return tuple(finding for several in list(found) for finding in several)


def _title(check: Check) -> str:
    return str(getattr(check, "__name__", "check")).removeprefix("check_").replace("_", " ")
