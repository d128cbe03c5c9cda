"""LoRA of a batch whose tokens belong to many adapters, on a CPU: few large products in place of one for each token.

Adapters with many tokens in the batch (prompts) are multiplied one after the other. Those with few (a token each, when 20 adapters
generate) would cost a dozen small operations each, in every projection of every layer; they are multiplied together, batched over the
engine's own stack of slots, which is read in place. Knows no engine.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_FEW = 4
"""Adapters with up to so many tokens are multiplied together: more would be padding, and fill a product of their own."""
_SPARSE = 3
"""The slots from the first to the last such adapter are all read. Reading one costs about a third of an adapter's own small operations
(SmolLM2's layers, rank 16), so up to three for each adapter in the batch pay."""


@dataclass(frozen=True)
class _Together:
    """Adapters with few tokens each."""

    slots: slice
    tokens: Tensor
    """[slots, width]: the tokens of each slot; where it has fewer, any token, whose product is not used."""
    places: Tensor
    """Where the products of `rows` are, slots and width flattened."""
    rows: Tensor | None
    """Their tokens in the order of the batch; None: the whole batch."""


@dataclass(frozen=True)
class LoraBatch:
    """Which tokens of a batch belong to which slot; made once for a batch and used in every layer."""

    _single: tuple[tuple[int, slice | Tensor], ...]
    """Slot and tokens of each adapter with many: a stretch of the batch, which is read and written in place, or any tokens."""
    _together: _Together | None

    @classmethod
    def of(cls, slots: Tensor) -> "LoraBatch":
        """Sort the tokens of a batch by `slots` [tokens]; -1 is a token without an adapter."""
        counts = Counter(slots.tolist())
        del counts[-1]
        few = sorted(slot for slot, count in counts.items() if count <= _FEW)
        if len(few) < 2 or few[-1] - few[0] >= _SPARSE * len(few):
            few = []
        many = sorted(counts.keys() - set(few))
        single = tuple((slot, _stretch(torch.nonzero(slots == slot).flatten())) for slot in many)
        return cls(single, _gather(slots.tolist(), few) if few else None)

    def add(self, y: Tensor, x: Tensor, a_stacks: Sequence[Tensor], b_stacks: Sequence[Tensor], scale: float, sizes: Sequence[int]) -> None:
        """Add `scale x A^T B^T` of each token's own adapter to `y` in place, slice by slice.

        `y` [tokens, sum(sizes)], `x` [tokens, in], A per slice [slots, 1, rank, in], B per slice [slots, 1, size, rank].
        """
        for slot, rows in self._single:
            inputs = x[rows]
            for part, a, b in _slices(y, a_stacks, b_stacks, sizes):
                shrunk = inputs @ a[slot, 0].T
                if isinstance(rows, slice):
                    part[rows].addmm_(shrunk, b[slot, 0].T, alpha=scale)
                else:
                    part.index_add_(0, rows, shrunk @ b[slot, 0].T, alpha=scale)
        if self._together is None:
            return
        slots, places, rows = self._together.slots, self._together.places, self._together.rows
        tokens = self._together.tokens
        gathered = x.index_select(0, tokens.flatten()).view(*tokens.shape, -1)
        for part, a, b in _slices(y, a_stacks, b_stacks, sizes):
            shrunk = torch.bmm(gathered, a[slots, 0].transpose(1, 2))
            change = torch.bmm(shrunk, b[slots, 0].transpose(1, 2)).flatten(0, 1).index_select(0, places)
            if rows is None:
                part.add_(change, alpha=scale)
            else:
                part.index_add_(0, rows, change, alpha=scale)


def by_rank(b_stack: Tensor) -> Tensor:
    """The same stack of B [slots, 1, size, rank] with the values of one rank side by side in memory.

    A product of few tokens then reads B from its start to its end: 20 adapters of a token each take 0.81 of the time, which is what it
    takes to read all of them once (`tests/benchmarks/lora.py`).
    """
    return b_stack.transpose(-1, -2).contiguous().transpose(-1, -2)


def _stretch(rows: Tensor) -> slice | Tensor:
    """`rows`, ascending, as a slice where none is missing between the first and the last: the prompt of one request is such."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows


def _gather(slots: list[int], few: list[int]) -> _Together:
    """Lay the tokens of the slots `few` out for one batched product."""
    first, wanted = few[0], set(few)
    rows = [row for row, slot in enumerate(slots) if slot in wanted]
    width = max(Counter(slots[row] for row in rows).values())
    tokens = torch.zeros(few[-1] - first + 1, width, dtype=torch.long)
    used: Counter[int] = Counter()
    places = []
    for row in rows:
        slot = slots[row] - first
        tokens[slot, used[slot]] = row
        places.append(slot * width + used[slot])
        used[slot] += 1
    whole = len(rows) == len(slots)
    return _Together(slice(first, few[-1] + 1), tokens, torch.tensor(places), None if whole else torch.tensor(rows))


def _slices(y: Tensor, a_stacks: Sequence[Tensor], b_stacks: Sequence[Tensor], sizes: Sequence[int]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Each slice of `y` with the stacks that belong to it."""
    return list(zip(y.split(list(sizes), dim=1), a_stacks, b_stacks, strict=True))
