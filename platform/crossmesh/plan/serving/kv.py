"""Bytes of keys and values on one chip of an engine. Source: modelled.

Layers with a window keep its tokens only. A layer that uses an earlier layer's keys and values keeps none of its own, so shared ones are
held once, but it reads them again. Where one projection makes keys and values the cache holds both: keys are rotated, values are not.
"""

from dataclasses import dataclass

from crossmesh.plan.serving.point import ServingPoint


@dataclass(frozen=True)
class KvBytes:
    """Key/value cache on one chip."""

    global_per_token: float
    """Of all layers that see everything, for each token of a sequence."""
    sliding_per_token: float
    """Of all layers with a window, for each token within it."""
    window: int
    """The largest window; 0 without such layers."""

    def sequence(self, tokens: int) -> float:
        """Bytes of a sequence of `tokens`."""
        return tokens * self.global_per_token + min(tokens, self.window) * self.sliding_per_token


def kv_bytes(point: ServingPoint) -> KvBytes:
    """What the cache holds; heads that are fewer than ranks are held by several."""
    return _summed(point, shared=False)


def kv_read_bytes(point: ServingPoint) -> KvBytes:
    """What one token reads of each token that it sees."""
    return _summed(point, shared=True)


def _summed(point: ServingPoint, *, shared: bool) -> KvBytes:
    """Over the layers with keys and values of their own, or over all."""
    sums = {False: 0.0, True: 0.0}
    for work in point.model.layers:
        layer = work.layer
        if shared or layer.kv_from is None:
            heads = max(1.0, layer.kv_heads / point.tp)
            sums[bool(layer.window)] += work.count * 2 * heads * layer.head_dim * point.kv_width
    return KvBytes(sums[False], sums[True], max(work.layer.window for work in point.model.layers))
