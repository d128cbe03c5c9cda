"""Short names of training runs: what tells them apart, in words that stay readable in a column of two hundred."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from crossmesh.report.gate.comparable import ABSENT, Difference, differences_in
from crossmesh.report.variants import Variant

_FIRST = ("hardware", "emulated", "mesh.dcn", "mesh.data", "mesh.fsdp", "mesh.tp", "batch_micro")
"""What people look for first; other keys follow in their own order."""
_SHORT = {
    "batch_micro": "micro",
    "mesh.dcn": "dcn",
    "mesh.data": "data",
    "mesh.fsdp": "fsdp",
    "mesh.tp": "tp",
    "packing.mode": "packing ",
    "packing.length": "length ",
}
_LEFT_OUT = ("backend", "files")
"""The backend is a name's first word; that an adapter has no files of its own, its science says."""
_UNNAMED = ("hardware", "attention")
"""Keys whose values speak for themselves."""
_PARTS = 5
"""Most settings in a name of those that decide what is learnt; the groups of a report name all."""
_LONGEST = 24
_SHORT_ID = 8


def variant_labels(variants: Sequence[Variant]) -> tuple[str, ...]:
    """Return a distinct name for each: its backend, and every setting that changes speed and is not the same in all of them.

    `torch fsdp2 tp1 micro4`. Of the settings that decide what is learnt those follow that tell apart runs which the ones before do not.
    Where all that leaves several with one name, the run's id is in it too.
    """
    names = [variant.name for variant in variants]
    words = {variant.name: variant.backend or "" for variant in variants}
    for difference in sorted(differences_in("system", variants), key=_rank):
        if difference.key not in _LEFT_OUT:
            words = _with(words, difference.key, _shortened(difference.values))
    parts = 0
    for difference in sorted(differences_in("science", variants), key=_rank):
        if parts == _PARTS or any(len(value) > _LONGEST or value.endswith("…") for value in difference.by_value):
            continue
        longer = _with(words, difference.key, difference.values)
        if len(set(longer.values())) > len(set(words.values())):
            words, parts = longer, parts + 1
    repeated = Counter(words.values())
    ids = {variant.name: (variant.run_id or "")[:_SHORT_ID] for variant in variants}
    told = [f"{words[name]} {ids[name]}" if repeated[words[name]] > 1 else words[name] for name in names]
    alike = Counter(told)  # Ids may begin alike, and a name may be what another one's words and id make.
    return tuple(f"{words[name]} {name}" if alike[one] > 1 else one for name, one in zip(names, told, strict=True))


def _rank(difference: Difference) -> int:
    return _FIRST.index(difference.key) if difference.key in _FIRST else len(_FIRST)


def _with(words: Mapping[str, str], key: str, values: Mapping[str, str]) -> dict[str, str]:
    """The names with one more setting."""
    return {name: f"{said} {_part(key, values.get(name, ''))}".strip() for name, said in words.items()}


def _shortened(values: Mapping[str, str]) -> dict[str, str]:
    """The values of a setting, long ones cut to what still tells them apart, if any."""
    if all(len(value) <= _LONGEST for value in values.values()):
        return dict(values)
    cut = {value: value[:_LONGEST] for value in values.values()}
    return {name: cut[value] for name, value in values.items()} if len(set(cut.values())) == len(cut) else dict(values)


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts `micro2` before `micro16`."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name))


def _part(key: str, value: str) -> str:
    if not value or key in _UNNAMED:
        return value
    if value in ("yes", "no", ABSENT):  # Of a switch: its name where it is on.
        return key.rpartition(".")[2] if value == "yes" else ""
    short = _SHORT.get(key, f"{key.rpartition('.')[2]} ")
    return f"{short}{value}"
