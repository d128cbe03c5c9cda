"""How many tokens the sequences of a micro-batch are computed at: as few as its rows need and the framework takes.

torch computes every shape: a micro-batch is as wide as its longest sequence. JAX compiles a program for each shape: it has a few widths,
chosen from the rows' lengths so that the least padding is computed. Pure functions of the rows' lengths and the spec: every process and
every restart has the same. What is learnt does not depend on them.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.data.order import step_rows
from crossmesh.hardware.devices import Gpu, Tpu

MOST_WIDTHS = 4
"""Programs of different width that a run on JAX compiles at most."""
STEPS_A_WIDTH = 50
"""Optimizer steps that another program must serve to be worth its compilation."""
_SAMPLED_STEPS = 64
_GRAINS = 16
"""Widths to choose from. Coarse ones are the same for data sets that are alike, so that programs are found in the cache."""
_TENSOR_CORES = 8
"""Products in 16 bits use an NVIDIA GPU's tensor cores fully where sizes are multiples of this."""
_LANES = 128
"""Width of a TPU's vector registers; splash attention fills sequences up to a multiple of it."""


@dataclass(frozen=True)
class Widths:
    """The widths that are possible."""

    longest: int
    """No sequence is longer."""
    multiple: int = 1
    """Every width is a multiple of this, or `longest`."""
    buckets: tuple[int, ...] = ()
    """Ascending, the last one holds every row; none: every multiple."""

    def of(self, tokens: int) -> int:
        """The width of a micro-batch whose longest sequence has so many tokens."""
        if self.buckets:
            return self.buckets[bisect_left(self.buckets, tokens)]
        return min(self.longest, max(1, -(-tokens // self.multiple)) * self.multiple)


def widths_of(lengths: Sequence[int], spec: ExperimentSpec) -> Widths:
    """The widths of a run of `spec` over rows of `lengths` tokens. They do not depend on where a run ends (`optim.stop_at`)."""
    longest, device = spec.sequence_length, spec.hardware.slice.device
    if spec.backend_name == "torch":
        return Widths(longest, _TENSOR_CORES if isinstance(device, Gpu) else 1)
    if spec.packing.mode != "none":
        return Widths(longest, buckets=(longest,))
    most = min(MOST_WIDTHS, 1 + spec.optim.steps // STEPS_A_WIDTH)
    together = spec.micro_batch * spec.mesh_shape.dp_size
    sampled = step_rows(len(lengths), spec.batch.size, _SAMPLED_STEPS, spec.data.seed)
    needed = [max(lengths[row] for row in rows) for step in sampled for rows in by_length(step, lengths, together)]
    lanes = _LANES if isinstance(device, Tpu) else _TENSOR_CORES
    return Widths(longest, buckets=choose_buckets(tuple(needed), max(lengths), longest, lanes, most))


def by_length(rows: Sequence[int], lengths: Sequence[int], together: int) -> list[list[int]]:
    """The rows of one step in groups of `together` of similar length, longest first: a device's allocator sees its largest need first."""
    ordered = sorted(rows, key=lambda row: -lengths[row])
    return [ordered[start : start + together] for start in range(0, len(ordered), together)]


@lru_cache(maxsize=256)
def choose_buckets(needed: tuple[int, ...], longest_row: int, limit: int, lanes: int, most: int) -> tuple[int, ...]:
    """At most `most` widths up to `limit` for micro-batches that need `needed` tokens, so that the least padding is computed; ascending.

    The last one holds `longest_row`. A width is a multiple of a sixteenth of the limit, rounded up to `lanes`, or the limit. One that saves
    nothing is left out.
    """
    grain = -(-limit // (_GRAINS * lanes)) * lanes
    possible = sorted({min(limit, -(-tokens // grain) * grain) for tokens in (*needed, longest_row)})
    counts = Counter(min(limit, -(-tokens // grain) * grain) for tokens in needed)
    # best[i]: least computed tokens of everything up to possible[i], the last width chosen being that one, and all that were chosen.
    best: list[tuple[int, tuple[int, ...]]] = [
        (sum(counts[below] for below in possible[: index + 1]) * width, (width,)) for index, width in enumerate(possible)
    ]
    for _ in range(most - 1):
        best = [
            min(
                best[index],
                *(
                    (best[last][0] + sum(counts[between] for between in possible[last + 1 : index + 1]) * width, (*best[last][1], width))
                    for last in range(index)
                ),
                key=lambda found: (found[0], len(found[1])),
            )
            if index
            else best[0]
            for index, width in enumerate(possible)
        ]
    return best[-1][1]
