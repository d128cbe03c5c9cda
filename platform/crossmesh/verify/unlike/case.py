"""One row of the table of `unlike`: what was changed, where it must show, where it showed."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

NOWHERE = "nowhere"


@dataclass(frozen=True)
class Case:
    """A change and what became of it."""

    changed: str
    must: str
    """Scopes of the comparison in which it must show, comma between them; `NOWHERE`; or `refused`."""
    shown: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    wrong: str = ""
    """What else does not hold; empty: nothing."""
    skipped: str = ""
    """Why it was not tried; empty: it was."""

    @property
    def passed(self) -> bool:
        """Whether it shows exactly where it must, and nothing else is wrong."""
        return self.shown == self.must and not self.wrong

    @property
    def row(self) -> dict[str, Any]:
        """The row as JSON values."""
        verdict = "skipped" if self.skipped else "passed" if self.passed else "NOT PASSED"
        said = self.skipped or self.wrong
        return {
            "must_show_in": self.must,
            "shown_in": self.shown or NOWHERE,
            "verdict": verdict,
            **({"note": said} if said else {}),
            **self.figures,
        }


def scopes(found: Collection[str]) -> str:
    """Names of scopes as the table has them."""
    return ", ".join(sorted(found)) or NOWHERE
