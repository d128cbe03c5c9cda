"""Short names of training runs: what tells them apart, in words that stay readable in a column of two hundred."""

import re
from collections import Counter
from collections.abc import Sequence

from crossmesh.report.comparable import differences_in
from crossmesh.report.variants import Variant

_FIRST = ("hardware", "mesh.dcn", "mesh.data", "mesh.fsdp", "mesh.tp", "batch_micro")
"""What people look for first; other keys follow in their own order."""
_SHORT = {"batch_micro": "micro", "mesh.dcn": "dcn", "mesh.data": "data", "mesh.fsdp": "fsdp", "mesh.tp": "tp"}
_UNNAMED = ("hardware", "remat", "attention")
"""Keys whose values speak for themselves."""
_PARTS = 5
_LONGEST = 24
_SHORT_ID = 8


def labels(variants: Sequence[Variant]) -> tuple[str, ...]:
    """Return a distinct name for each: its backend and the settings that tell it apart, `torch fsdp2 micro4`; else also its run's id.

    A setting that tells no two apart which the ones before it do not is left out.
    """
    names = [variant.name for variant in variants]
    words = {variant.name: variant.backend or "" for variant in variants}
    differences = [one for scope in ("system", "science") for one in differences_in(scope, variants) if one.key != "backend"]
    differences.sort(key=lambda one: _FIRST.index(one.key) if one.key in _FIRST else len(_FIRST))
    parts = 0
    for difference in differences:
        if parts == _PARTS or any(len(value) > _LONGEST or value.endswith("…") for value in difference.by_value):
            continue
        longer = {name: f"{words[name]} {_part(difference.key, difference.values.get(name, ''))}".strip() for name in names}
        if len(set(longer.values())) > len(set(words.values())):
            words, parts = longer, parts + 1
    repeated = Counter(words.values())
    ids = {variant.name: (variant.run_id or "")[:_SHORT_ID] for variant in variants}
    told = [f"{words[name]} {ids[name]}" if repeated[words[name]] > 1 else words[name] for name in names]
    alike = Counter(told)  # Ids may begin alike, and a name may be what another one's words and id make.
    return tuple(f"{words[name]} {name}" if alike[one] > 1 else one for name, one in zip(names, told, strict=True))


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts `micro2` before `micro16`."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name))


def _part(key: str, value: str) -> str:
    if not value or key in _UNNAMED:
        return value
    short = _SHORT.get(key, f"{key.rpartition('.')[2]} ")
    return f"{short}{value}"
