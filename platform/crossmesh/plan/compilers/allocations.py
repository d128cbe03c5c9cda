"""What memory held at its peak, told from when each block of it came and went. Pure: whoever watches the blocks is `trace_gpu_recorder.py`.

A step is cut into stages, which are counted: even ones are forward passes (and the update at the end), odd ones backward passes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ACTIVATIONS, GRADIENTS, TEMPORARIES = "activations", "gradients", "temporaries"


@dataclass(frozen=True)
class Change:
    """A block of memory has another size from here on."""

    block: int
    size: int
    """Bytes; 0 when it is freed."""
    stage: int


def peak_by_kind(changes: Sequence[Change], known: Mapping[int, str]) -> dict[str, int]:
    """Bytes by kind at the moment when most is held.

    Kinds of blocks in `known` are given. Of the others, what a forward pass made for a later stage is *activations*, what a backward
    pass made for a later stage *gradients*, and what was made for its own stage only *temporaries*.
    """
    sizes: dict[int, int] = {}
    born: dict[int, int] = {}
    freed: dict[int, int] = {}
    total = most = at = 0
    for index, change in enumerate(changes):
        born.setdefault(change.block, change.stage)
        if not change.size:
            freed[change.block] = change.stage
        total += change.size - sizes.get(change.block, 0)
        sizes[change.block] = change.size
        if total > most:
            most, at = total, index
    held: dict[int, int] = {}
    for change in changes[: at + 1]:
        held[change.block] = change.size
    kinds: dict[str, int] = {}
    for block, size in held.items():
        outlives = freed.get(block, born[block] + 1) > born[block]
        kind = known.get(block) or (TEMPORARIES if not outlives else GRADIENTS if born[block] % 2 else ACTIVATIONS)
        kinds[kind] = kinds.get(kind, 0) + size
    return {kind: size for kind, size in kinds.items() if size}
