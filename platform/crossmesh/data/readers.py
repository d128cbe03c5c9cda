"""The dataset readers by name, and the one that a `data.source` asks for.

A reader gives conversations; what is done with them (cleaning, templates, masks, limits, digests) is the same whoever read them.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from crossmesh.config.training import DataSpec
from crossmesh.data.conversation import Conversation
from crossmesh.plugins import Registry

Reader = Callable[[DataSpec, Path], Iterable[Conversation]]
"""From the spec and a folder for downloads to the rows, in an order that is always the same. Columns become conversations by
`columns.conversation_of`; a mistake of the user's is an `InputError`, which names the row."""

READERS = Registry[Reader](
    "crossmesh.readers",
    "dataset reader",
    {
        "file": "crossmesh.data.files:read_files",
        "hf": "crossmesh.data.files:read_hub",
        "rtl": "crossmesh.data.rtl:read_rtl",
    },
)
_ADDRESSED = ("file", "hf")
"""Readers that an address asks for and their name alone does not: `data.source=hf` is a folder."""


def reader_name(source: str) -> str:
    """Return which reader reads `source`: that of `NAME://...` or `NAME`, where one has that name, and else the one of files."""
    name, address, _ = source.partition("://")
    return name if name in READERS.names and (address or name not in _ADDRESSED) else "file"


def read_source(data: DataSpec, cache: Path) -> Iterable[Conversation]:
    """Read the rows of `data.source` by the reader that it asks for."""
    return READERS.load(reader_name(data.source))(data, cache)
