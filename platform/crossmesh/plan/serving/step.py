"""How long one step of an engine takes, whatever it mixes: tokens of answers and parts of prompts. Source: modelled, a roofline.

Kernels follow each other: products of matrices, which read the weights once; attention, which reads the cache; all-reduces. In each of the
first two memory and arithmetic overlap, so the slower counts. An engine's host, its sampler and gaps between kernels are not in here.
"""

from dataclasses import dataclass

from crossmesh.plan.serving.batching import Step
from crossmesh.plan.serving.kv import KvBytes, kv_read_bytes
from crossmesh.plan.serving.point import ServingPoint
from crossmesh.plan.training.efficiency import Efficiency
from crossmesh.plan.training.lengths import causal_pairs
from crossmesh.plan.training.links import all_reduce_s


@dataclass(frozen=True)
class StepCost:
    """Seconds of everything that a step is made of, on one chip."""

    token_s: float
    """Products of one token with the matrices of all layers."""
    row_s: float
    """Logits of one sequence."""
    global_pair_s: float
    """Attention of one token to one other, in all layers that see everything."""
    sliding_pair_s: float
    """The same in all layers with a window."""
    weights_s: float
    """All weights that any token needs, read once."""
    experts_s: float
    """All experts, read once; 0 without."""
    expert_share: float
    """Part of the experts that one token uses."""
    read: KvBytes
    """Seconds, not bytes: of the cache that is read for one token."""
    reduce_s: float
    """All-reduces of one token."""
    latency_s: float
    """All-reduces of a step, however small."""

    def seconds(self, step: Step) -> float:
        """Seconds of `step`."""
        matrices = max(self._products(step), self._weights(step.tokens))
        return matrices + max(self._attention(step), self._cache(step)) + self._collectives(step.tokens)

    def parts(self, step: Step) -> dict[str, float]:
        """What a step's time is made of: products overlap with weights, attention with the cache."""
        return {
            "weights": self._weights(step.tokens),
            "products": self._products(step),
            "cache": self._cache(step),
            "attention": self._attention(step),
            "collectives": self._collectives(step.tokens),
        }

    def _weights(self, tokens: int) -> float:
        """Each token takes its own experts, so a step of many reads nearly all of them."""
        if not self.experts_s:
            return self.weights_s
        return self.weights_s + self.experts_s * (1 - (1 - self.expert_share) ** tokens)

    def _cache(self, step: Step) -> float:
        total = step.context * self.read.global_per_token + step.windowed * self.read.sliding_per_token
        return total + sum(self.read.sequence(chunk.start) for chunk in step.chunks)

    def _products(self, step: Step) -> float:
        return step.tokens * self.token_s + (step.decodes + len(step.chunks)) * self.row_s

    def _attention(self, step: Step) -> float:
        total = step.context * self.global_pair_s + step.windowed * self.sliding_pair_s
        for chunk in step.chunks:
            end = chunk.start + chunk.tokens
            total += (causal_pairs(end, 0) - causal_pairs(chunk.start, 0)) * self.global_pair_s
            if self.read.window:
                pairs = causal_pairs(end, self.read.window) - causal_pairs(chunk.start, self.read.window)
                total += pairs * self.sliding_pair_s
        return total

    def _collectives(self, tokens: int) -> float:
        return self.latency_s + tokens * self.reduce_s


def step_cost(point: ServingPoint, factors: Efficiency) -> StepCost:
    """The costs of `point` at the efficiencies `factors`."""
    architecture, layers = point.architecture, point.model.layers
    peak = point.tp * point.peak
    bandwidth = point.chip.hbm_bytes_per_s * factors.bandwidth
    pairs = {False: 0.0, True: 0.0}
    for work in layers:
        pairs[bool(work.layer.window)] += 4.0 * work.count * work.layer.q_dim / (peak * factors.fused_attention)
    read = kv_read_bytes(point)
    reduces = 2 * len(architecture.layers) + 1
    size = architecture.hidden * point.width
    return StepCost(
        token_s=2.0 * sum(work.count * work.active for work in layers) / (peak * factors.matmul),
        row_s=2.0 * architecture.vocab * architecture.hidden / (peak * factors.matmul),
        global_pair_s=pairs[False],
        sliding_pair_s=pairs[True],
        weights_s=needed_bytes(point) / bandwidth,
        experts_s=expert_bytes(point) / bandwidth,
        expert_share=architecture.experts.per_token / architecture.experts.count if architecture.experts else 1.0,
        read=KvBytes(read.global_per_token / bandwidth, read.sliding_per_token / bandwidth, read.window),
        reduce_s=reduces * all_reduce_s(point.chip, point.tp, size) / factors.link,
        latency_s=reduces * factors.latency_s if point.tp > 1 else 0.0,
    )


def needed_bytes(point: ServingPoint) -> float:
    """Bytes of weights on one chip that every step reads, however few its tokens: matrices and the output projection, without experts."""
    experts, hidden = point.architecture.experts, point.architecture.hidden
    own = experts.per_token * 3 * experts.ffn * hidden if experts else 0
    matrices = sum(work.count * (work.active - own) for work in point.model.layers)
    return point.width * (matrices + point.architecture.vocab * hidden) / point.tp + replicated_bytes(point)


def expert_bytes(point: ServingPoint) -> float:
    """Bytes of all experts on one chip; 0 without."""
    experts = point.architecture.experts
    if experts is None:
        return 0.0
    return point.width * len(point.architecture.layers) * experts.count * 3 * experts.ffn * point.architecture.hidden / point.tp


def replicated_bytes(point: ServingPoint) -> float:
    """What a chip holds of key/value projections beyond an even share."""
    more = 0.0
    for work in point.model.layers:
        layer = work.layer
        if layer.kv_from is None and layer.kv_heads < point.tp:
            projections = 1 if layer.shared_kv else 2
            share = layer.kv_dim / point.tp
            more += work.count * projections * point.architecture.hidden * (layer.head_dim - share)
    return point.width * more
