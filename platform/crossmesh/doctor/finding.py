"""What a check found: a name, a verdict, the facts, and the command that mends a fault."""

from dataclasses import dataclass

OK, NOTE, FAULT = "ok", "note", "fault"


@dataclass(frozen=True)
class Finding:
    """One row of the table."""

    name: str
    status: str
    """`ok`, `note` (worth knowing; jobs run) or `fault` (a job that needs it fails)."""
    found: str
    mend: str = ""
    """A command, or a setting to add to the job's; a fault always has one."""

    def __post_init__(self) -> None:
        """Check that a fault can be mended."""
        if self.status not in (OK, NOTE, FAULT) or (self.status == FAULT and not self.mend):
            raise ValueError(f"{self.name}: a finding is ok, note or fault, and a fault names what mends it")


def ok(name: str, found: str) -> Finding:
    """As it should be."""
    return Finding(name, OK, found)


def note(name: str, found: str, mend: str = "") -> Finding:
    """Worth knowing."""
    return Finding(name, NOTE, found, mend)


def fault(name: str, found: str, mend: str) -> Finding:
    """Something to mend."""
    return Finding(name, FAULT, found, mend)
