"""What an engine holds and how fast it answers: weights, key/value cache, prefill, decode. Source: modelled.

Layers with a window keep its tokens only; a layer that uses an earlier layer's keys and values keeps none of its own, so shared ones are
counted once. Where one projection makes keys and values, its weight counts once, the cache holds both: keys are rotated, values are not.
How requests meet in time (queueing, mixed lengths) is not in here.
"""

from dataclasses import dataclass
from math import floor

from crossmesh.plan.efficiency import IDEAL, Efficiency, efficiency
from crossmesh.plan.lengths import causal_pairs
from crossmesh.plan.links import all_reduce_s
from crossmesh.plan.serving_point import ServingPoint

_WORKSPACE_TOKENS = 8192
"""Tokens that one pass of the engine computes at most: what its activations are sized for (vLLM's max_num_batched_tokens)."""


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
    """The cache's bytes; heads that are fewer than ranks are held by several."""
    sums = {0: 0.0, 1: 0.0}
    for work in point.model.layers:
        layer = work.layer
        if layer.kv_from is None:
            heads = max(1.0, layer.kv_heads / point.tp)
            sums[1 if layer.window else 0] += work.count * 2 * heads * layer.head_dim * point.kv_width
    return KvBytes(sums[0], sums[1], max(work.layer.window for work in point.model.layers))


def weight_bytes(point: ServingPoint) -> float:
    """Bytes of weights on one chip, key/value projections held more than once included."""
    total = sum(group.per_chip(point.tp, 1) for group in point.model.groups["torch"])
    return point.width * total + replicated_bytes(point)


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


@dataclass(frozen=True)
class EngineForecast:
    """What an engine is expected to do."""

    weights: float
    """Bytes on a chip."""
    workspace: float
    cache_room: float
    """Bytes on a chip that are left for keys and values."""
    kv: KvBytes
    sequences: int
    """Sequences of prompt and answer that fit at once; 0: not one."""
    batch: int
    """Those that are answered at once: by memory, `serve.max_num_seqs` and `plan.requests`."""
    prefill_s: float
    """One prompt."""
    decode_s: float
    """One token of every sequence of the batch, half of the answers written."""
    decode_limiter: str
    tokens_per_s: float
    """Answers' tokens, prefill included: each sequence is prefilled while the others wait."""
    ttft_bound_s: float
    """No engine can answer sooner from a cold cache: all products of the prompt at peak, or all weights read once."""


def engine_forecast(point: ServingPoint) -> EngineForecast:
    """Plan the engine at the stated efficiencies of its chips."""
    factors = efficiency(point.slice.device)
    kv, weights = kv_bytes(point), weight_bytes(point)
    workspace = _workspace(point)
    room = point.chip.hbm_bytes * min(point.memory_share, factors.usable_hbm) - weights - workspace
    sequences = max(0, floor(room / kv.sequence(point.prompt + point.output)))
    batch = min(sequences, point.max_num_seqs, point.requests or point.max_num_seqs)
    prefill = prefill_s(point, point.prompt, factors)
    context = point.prompt + point.output // 2
    parts = decode_parts(point, max(batch, 1), context, factors)
    decode = max(parts["weights"] + parts["cache"], parts["products"]) + parts["collectives"]
    rate = batch * point.output / (batch * prefill + point.output * decode) if batch else 0.0
    return EngineForecast(
        weights=weights,
        workspace=workspace,
        cache_room=room,
        kv=kv,
        sequences=sequences,
        batch=batch,
        prefill_s=prefill,
        decode_s=decode,
        decode_limiter=max(parts, key=lambda name: parts[name]),
        tokens_per_s=rate,
        ttft_bound_s=ttft_bound_s(point, point.prompt),
    )


def prefill_flops(point: ServingPoint, tokens: int) -> float:
    """FLOP of a prompt over all chips: 2 per parameter and token, 4 per pair and query feature, one row of logits."""
    total = 2.0 * point.architecture.vocab * point.architecture.hidden
    for work in point.model.layers:
        total += work.count * (2 * work.active * tokens + 4 * causal_pairs(tokens, work.layer.window) * work.layer.q_dim)
    return total


def ttft_bound_s(point: ServingPoint, tokens: int) -> float:
    """Seconds below which no engine has the first token of a prompt of `tokens` that is not cached."""
    peak = point.tp * (point.chip.peak(point.dtype) or point.chip.bfloat16)
    return max(prefill_flops(point, tokens) / peak, weight_bytes(point) / point.chip.hbm_bytes_per_s)


def prefill_s(point: ServingPoint, tokens: int, factors: Efficiency = IDEAL) -> float:
    """Seconds of one prompt: products, or weights read once, and an all-reduce after attention and after the feed-forward."""
    peak = point.tp * (point.chip.peak(point.dtype) or point.chip.bfloat16) * factors.matmul
    products = prefill_flops(point, tokens) / peak
    reading = weight_bytes(point) / (point.chip.hbm_bytes_per_s * factors.bandwidth)
    return max(products, reading) + _collectives_s(point, tokens, factors)


def decode_parts(point: ServingPoint, batch: int, context: int, factors: Efficiency) -> dict[str, float]:
    """Seconds of one token for each of `batch` sequences of `context` tokens: weights and cache read, products, collectives."""
    bandwidth = point.chip.hbm_bytes_per_s * factors.bandwidth
    peak = point.tp * (point.chip.peak(point.dtype) or point.chip.bfloat16) * factors.matmul
    active = sum(work.count * work.active for work in point.model.layers) + point.architecture.vocab * point.architecture.hidden
    return {
        "weights": weight_bytes(point) / bandwidth,
        "cache": batch * kv_bytes(point).sequence(context) / bandwidth,
        "products": 2 * batch * active / peak,
        "collectives": _collectives_s(point, batch, factors),
    }


def _collectives_s(point: ServingPoint, tokens: int, factors: Efficiency) -> float:
    if point.tp == 1:
        return 0.0
    size = tokens * point.architecture.hidden * point.width
    reduces = 2 * len(point.architecture.layers) + 1
    return reduces * (all_reduce_s(point.chip, point.tp, size) / factors.link + factors.latency_s)


def _workspace(point: ServingPoint) -> float:
    """Activations of one pass: the widest layer of `_WORKSPACE_TOKENS`, and logits of every sequence in float32."""
    widest = max(4 * point.architecture.hidden + (2 * work.ffn + 2 * work.layer.q_dim) / point.tp for work in point.model.layers)
    return _WORKSPACE_TOKENS * widest * point.width + 4 * point.max_num_seqs * point.architecture.vocab
