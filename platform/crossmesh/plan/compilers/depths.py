"""Which small depths stand for a deep model, and how their figures add up to it. Pure arithmetic over the kinds of its layers.

Layers repeat: sixty layers of Gemma 4 are ten times the same six. What a step needs grows by the same amount with each repetition, so that
two depths tell all of them; a model with two stretches that repeat on their own (one with and one without own keys and values) takes three.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from crossmesh.models.architecture import LayerKind

_LEAST = 2
"""Layers that the smallest depth has of a stretch: with one, the first layer is also the last, which others are not."""


@dataclass(frozen=True)
class Stretch:
    """A block of layers that repeats."""

    start: int
    period: int
    """Layers of the block."""
    count: int
    """How often it is there."""

    @property
    def end(self) -> int:
        """The layer after its last."""
        return self.start + self.period * self.count

    @property
    def small(self) -> int:
        """Repetitions in the smallest depth; twice as many show what a repetition adds."""
        return -(-_LEAST // self.period)

    @property
    def worth_cutting(self) -> bool:
        """Whether both depths are smaller than the whole."""
        return self.count > 2 * self.small


@dataclass(frozen=True)
class Depths:
    """Small depths, each the layers that it keeps, and the weight of its figures in the sum."""

    layers: tuple[tuple[int, ...], ...]
    weights: tuple[float, ...]

    def extrapolate(self, values: Sequence[float]) -> float:
        """A figure of the whole model from those of the depths, in order."""
        return sum(weight * value for weight, value in zip(self.weights, values, strict=True))


def stretches(kinds: Sequence[Hashable]) -> tuple[Stretch, ...]:
    """Cut `kinds` into blocks that repeat: from each index on, the one that covers most layers, of equals the shortest."""
    blocks, start = [], 0
    while start < len(kinds):
        best = Stretch(start, len(kinds) - start, 1)
        for period in range(len(kinds) - start, 0, -1):
            count = 1
            while list(kinds[start : start + period]) == list(kinds[start + count * period : start + (count + 1) * period]):
                count += 1
            one = Stretch(start, period, count)
            if count > 1 and (best.count == 1 or one.end >= best.end):
                best = one
        blocks.append(best)
        start = best.end
    return tuple(blocks)


def small_depths(kinds: Sequence[Hashable]) -> Depths | None:
    """The depths that tell all of a model with layers of `kinds`; None where they would be no smaller than the model."""
    cut = [one for one in stretches(kinds) if one.worth_cutting]
    if not cut:
        return None
    least = dict.fromkeys(cut, 1)
    layers = [_kept(len(kinds), least), *(_kept(len(kinds), least | {one: 2}) for one in cut)]
    more = [one.count / one.small - 1 for one in cut]
    return Depths(tuple(layers), (1 - sum(more), *more))


def _kept(depth: int, factors: dict[Stretch, int]) -> tuple[int, ...]:
    """The layers of a depth: of each stretch, `factors` times its small count, the last ones, whose keys later layers may use."""
    dropped = {layer for one, factor in factors.items() for layer in range(one.start, one.end - factor * one.small * one.period)}
    return tuple(layer for layer in range(depth) if layer not in dropped)


def keep_layers(layers: Sequence[LayerKind], kept: Sequence[int]) -> tuple[LayerKind, ...] | None:
    """`layers` without those that are not `kept`; None where one that stays uses the keys and values of one that does not."""
    new_index = {old: new for new, old in enumerate(kept)}
    chosen = [layers[index] for index in kept]
    if any(one.kv_from is not None and one.kv_from not in new_index for one in chosen):
        return None
    return tuple(one if one.kv_from is None else replace(one, kv_from=new_index[one.kv_from]) for one in chosen)
