"""How rows share sequences: for every optimizer step which rows lie in which sequence, how wide that is, and the batch that this makes.

A plan is a pure function of the rows' lengths and the spec, so that every process of a run, every backend and every restart has the same
one. Which rows a step has under `none` and `step` is `order.py`'s; attention keeps packed rows apart by their segment ids.
"""

import sys
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean

import numpy as np

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import PACKINGS
from crossmesh.data.batches import PackedBatch, Row, row_key
from crossmesh.data.order import row_stream, step_rows
from crossmesh.data.widths import Widths, by_length, widths_of
from crossmesh.errors import require


@dataclass(frozen=True)
class StepPlan:
    """The rows of one optimizer step, as indices into the data set."""

    rows: tuple[int, ...]
    """In the order they were drawn, whatever sequence they lie in."""
    sequences: tuple[tuple[int, ...], ...]
    """The same rows, by sequence and in order within it; an empty sequence is padding alone."""
    widths: tuple[int, ...] = ()
    """Tokens that the sequences of each micro-batch are computed at; one: all micro-batches; none: the length of a sequence."""


def plan_steps(lengths: Sequence[int], spec: ExperimentSpec) -> tuple[StepPlan, ...]:
    """Lay out all optimizer steps of `spec` over rows of `lengths` tokens, each at most `spec.sequence_length`.

    Fewer steps are a prefix of more. Every step's sequences divide into micro-batches over the whole mesh. Raises `InputError` when there
    are no rows.
    """
    require(len(lengths) > 0, "row_count", len(lengths), "at least one row")
    together, possible = spec.micro_batch * spec.mesh_shape.dp_size, widths_of(lengths, spec)
    return tuple(replace(plan, widths=_widths(plan.sequences, lengths, together, possible)) for plan in _laid_out(lengths, spec, together))


def _laid_out(lengths: Sequence[int], spec: ExperimentSpec, together: int) -> Iterator[StepPlan]:
    """The rows of each step in sequences."""
    batch, optim, seed = spec.batch, spec.optim, spec.data.seed
    if spec.packing.mode == "stream":
        packed = _StreamPacker(lengths, spec.sequence_length, spec.packing.window, seed)
        for _ in range(optim.last_step):
            sequences = tuple(packed.sequence() for _ in range(batch.size))
            yield StepPlan(tuple(chain.from_iterable(sequences)), sequences)
        return
    for rows in step_rows(len(lengths), batch.size, optim.last_step, seed):
        if spec.packing.mode == "none":
            yield StepPlan(tuple(rows), tuple((row,) for group in by_length(rows, lengths, together) for row in group))
        else:
            yield _packed_step(rows, lengths, spec.sequence_length, together)


def _widths(sequences: Sequence[Sequence[int]], lengths: Sequence[int], together: int, possible: Widths) -> tuple[int, ...]:
    """The width of each micro-batch of `together` sequences; one for all where only one is possible."""
    if len(possible.buckets) == 1:
        return possible.buckets
    filled = [sum(lengths[row] for row in rows) for rows in sequences]
    return tuple(possible.of(max(filled[start : start + together])) for start in range(0, len(filled), together))


def _packed_step(rows: Sequence[int], lengths: Sequence[int], length: int, together: int) -> StepPlan:
    """Pack the rows of one step, and add empty sequences up to a multiple of `together`."""
    sequences = first_fit_decreasing([lengths[row] for row in rows], length)
    filled = [tuple(rows[place] for place in places) for places in sequences]
    empty: list[tuple[int, ...]] = [()] * (-len(filled) % together)
    return StepPlan(tuple(rows), (*filled, *empty))


def first_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Put items of `lengths`, longest first, each into the first bin of `capacity` that has room; return their indices by bin.

    At most 11/9 of the fewest possible bins and 6/9 of one (Dosa 2007, "The tight bound of first fit decreasing bin-packing").
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for item in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        place = next((number for number, left in enumerate(room) if lengths[item] <= left), None)
        if place is None:
            place = len(bins)
            bins.append([])
            room.append(capacity)
        bins[place].append(item)
        room[place] -= lengths[item]
    return bins


class _StreamPacker:
    """Fills one sequence after another from a window of the endless row stream.

    A sequence takes rows as they come while there is room for two more of mean length, and ends with the one or two rows of the window that
    fill it best: the order stays close to the stream's, where packing whole windows, longest row first, would sort the steps by length.
    It starts with the row that has waited longest, so none waits for more than `window` sequences.
    """

    def __init__(self, lengths: Sequence[int], length: int, window: int, seed: int) -> None:
        self._lengths = lengths
        self._length = length
        self._two_rows = 2 * sum(lengths) / max(len(lengths), 1)
        self._stream = enumerate(row_stream(len(lengths), seed))
        # A window over several epochs would put one row into a sequence twice.
        self._window = min(window, len(lengths))
        self._waiting: dict[int, int] = {}
        """Row by its place in the stream, oldest first."""
        self._by_length: list[tuple[int, int]] = []
        """(length, place) of the same rows, sorted."""

    def sequence(self) -> tuple[int, ...]:
        """Return the rows of the next sequence."""
        while len(self._waiting) < self._window:
            place, row = next(self._stream)
            self._waiting[place] = row
            insort(self._by_length, (self._lengths[row], place))
        rows: list[int] = []
        room = self._length
        while chosen := self._choose(room, first=not rows):
            for place in chosen:
                row = self._waiting.pop(place)
                rows.append(row)
                room -= self._lengths[row]
                del self._by_length[bisect_left(self._by_length, (self._lengths[row], place))]
        return tuple(rows)

    def _choose(self, room: int, *, first: bool) -> tuple[int, ...]:
        """Places of the next rows of a sequence with `room` left; none when none fits."""
        oldest = next(iter(self._waiting), None)
        if oldest is not None and (first or room - self._lengths[self._waiting[oldest]] >= self._two_rows):
            return (oldest,)
        return _best_fill(self._by_length, room)


def _best_fill(items: Sequence[tuple[int, int]], room: int) -> tuple[int, ...]:
    """Places of the one or two of `items`, sorted (length, place), whose lengths come closest to `room` without passing it."""
    high = bisect_right(items, (room, sys.maxsize)) - 1
    if high < 0:
        return ()
    filled, best = items[high][0], [items[high][1]]
    low = 0
    while low < high:
        pair = items[low][0] + items[high][0]
        if pair > room:
            high -= 1
            continue
        if pair > filled:
            filled, best = pair, [items[low][1], items[high][1]]
        low += 1
    return tuple(best)


def packing_efficiency(plans: Sequence[StepPlan], lengths: Sequence[int], length: int) -> float:
    """Share of the computed tokens that is not padding; `length` is that of a sequence."""
    real = sum(lengths[row] for plan in plans for row in plan.rows)
    return real / sum(len(plan.sequences) * fmean(plan.widths or (length,)) for plan in plans)


def efficiencies(lengths: Sequence[int], spec: ExperimentSpec) -> dict[str, float]:
    """`packing_efficiency` of the steps of `spec` under every packing mode, by mode."""
    found = {}
    for mode in PACKINGS:
        length = 0 if mode == "none" else spec.packing.length
        own = replace(spec, packing=replace(spec.packing, mode=mode, length=length))
        found[mode] = packing_efficiency(plan_steps(lengths, own), lengths, own.sequence_length)
    return found


def build_batch(plan: StepPlan, rows: Sequence[Row], sequences: int, length: int, pad_id: int) -> PackedBatch:
    """Make the arrays of one step.

    The first token of each row carries no loss: what stands before it is another row.

    Args:
        plan: which rows lie where.
        rows: the data set.
        sequences: those of one micro-batch over the whole mesh; they divide the plan's.
        length: most tokens of a sequence; the plan says how wide it is computed.
        pad_id: token of the padding.
    """
    width = max(plan.widths, default=length)
    shape = (len(plan.sequences), width)
    tokens = np.full(shape, pad_id, np.int32)
    loss_mask = np.zeros(shape, np.bool_)
    positions, segment_ids, row_keys = np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.uint32)
    seen: Counter[str] = Counter()
    for number, indices in enumerate(plan.sequences):
        start = 0
        for segment, row in enumerate((rows[index] for index in indices), 1):
            here = (number, slice(start, start + len(row.tokens)))
            tokens[here], segment_ids[here] = row.tokens, segment
            positions[here] = np.arange(len(row.tokens), dtype=np.int32)
            loss_mask[here] = row.loss_mask
            loss_mask[number, start] = False
            row_keys[here] = row_key(row.id, seen[row.id])
            seen[row.id] += 1
            start += len(row.tokens)
    split = (-1, sequences, width)
    return PackedBatch(
        tokens.reshape(split),
        loss_mask.reshape(split),
        positions.reshape(split),
        segment_ids.reshape(split),
        row_keys.reshape(split),
        tuple(rows[index].id for index in plan.rows),
        plan.widths if len(plan.widths) > 1 else (),
    )
