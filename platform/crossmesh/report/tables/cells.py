"""What a report's tables are made of, the same for a page, a terminal and Markdown: cells with their source, columns, tables."""

from dataclasses import dataclass
from functools import lru_cache

from crossmesh.metrics import COMPILED, DERIVED, MEASURED, MODELLED, PUBLISHED

SOURCES = {
    MEASURED: "observed in the run itself",
    COMPILED: "said by a compiler or a trace of the very step",
    MODELLED: "computed before the run from exact rules and stated assumptions",
    PUBLISHED: "taken from a dated source outside",
    DERIVED: "measured time at a published price",
    "measured / modelled": "measured time against modelled work",
}
"""Where a number can come from, and what that means."""
SOURCE_MARKS = {
    MEASURED: "\u25cf",
    COMPILED: "\u25c6",
    MODELLED: "\u25cb",
    PUBLISHED: "\u25c7",
    DERIVED: "\u25d0",
    "measured / modelled": "\u25d1",
}
"""How a page marks them; its legend names the marks."""
_SEEN_AT_ONCE = 8
MISSING, BEST, FLAGGED = "missing", "best", "flagged"


@dataclass(frozen=True, slots=True)
class TableCell:
    """A number as it is shown, or why there is none."""

    text: str
    note: str = ""
    """Its interval, or a remark."""
    source: str = ""
    """One of `SOURCES`; empty for what is not a number."""
    value: float | None = None
    """What it is sorted by; None for text."""
    state: str = ""
    """`missing`: `text` is the reason; `best` of its group; `flagged`: `note` says why it is not plausible."""
    detail: str = ""
    """How it was measured; a small screen does without."""


@dataclass(frozen=True)
class Column:
    """A heading."""

    label: str
    unit: str = ""
    how: str = ""
    """How it was measured."""
    number: bool = False
    wide: bool = False
    """Sentences rather than words."""
    minor: bool = False
    """Said by the row's name too: a small screen does without."""


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows."""

    key: str
    """Unique in a report; letters, digits and dashes."""
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    sortable: bool = True
    """Whether the numbers of a column are of one kind."""

    @property
    def filtered(self) -> bool:
        """Whether it is long enough for a filter to help."""
        return self.sortable and len(self.rows) > _SEEN_AT_ONCE


@lru_cache(maxsize=1024)
def missing(reason: str) -> TableCell:
    """Return a cell that says why there is no number."""
    return TableCell(reason, state=MISSING)
