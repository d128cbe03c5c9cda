"""What an engine holds, how fast it answers when it is full, and what no engine can beat. Source: modelled.

How requests meet in time (queueing, mixed lengths) is `load.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import floor

from crossmesh.plan.serving.batching import Chunk, Step, StepLimits
from crossmesh.plan.serving.kv import KvBytes, kv_bytes
from crossmesh.plan.serving.point import ServingPoint
from crossmesh.plan.serving.step import StepCost, expert_bytes, needed_bytes, replicated_bytes, step_cost
from crossmesh.plan.training.efficiency import efficiency
from crossmesh.plan.training.lengths import causal_pairs

_NO_LIMIT = 1 << 31
"""Tokens of a sequence in a model whose layers all have windows."""


def weight_bytes(point: ServingPoint) -> float:
    """Bytes of weights on one chip, key/value projections held more than once included."""
    total = sum(group.per_chip(point.tp, 1) for group in point.model.groups["torch"])
    return point.width * total + replicated_bytes(point)


def usable_engine_bytes(point: ServingPoint) -> float:
    """Memory of a chip that the engine may fill."""
    return point.chip.hbm_bytes * min(point.memory_share, efficiency(point.slice.device).usable_hbm)


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
    longest: int
    """Tokens of the longest single sequence that fits: `serve.max_model_len` may not be more."""
    batch: int
    """Those that are answered at once: by memory, `serve.max_num_seqs` and `plan.requests`."""
    prefill_s: float
    """One prompt."""
    decode_s: float
    """One token of every sequence of the batch, half of the answers written."""
    decode_limiter: str
    tokens_per_s: float
    """Answers' tokens of a full engine, prefill included: each sequence is prefilled while the others wait."""
    ttft_bound_s: float
    """No engine can answer sooner from a cold cache."""


def engine_forecast(point: ServingPoint) -> EngineForecast:
    """Plan the engine at the stated efficiencies of its chips."""
    cost = step_cost(point, efficiency(point.slice.device))
    kv, weights, workspace = kv_bytes(point), weight_bytes(point), _workspace(point)
    room = usable_engine_bytes(point) - weights - workspace
    sequences = max(0, floor(room / kv.sequence(point.prompt + point.output)))
    batch = min(sequences, point.max_num_seqs, point.requests or point.max_num_seqs)
    prefill = prefill_s(cost, point.prompt, point.step_tokens)
    middle = decode_step(kv.window, max(batch, 1), point.prompt + point.output // 2)
    decode, parts = cost.seconds(middle), cost.parts(middle)
    return EngineForecast(
        weights=weights,
        workspace=workspace,
        cache_room=room,
        kv=kv,
        sequences=sequences,
        longest=_longest(kv, room),
        batch=batch,
        prefill_s=prefill,
        decode_s=decode,
        decode_limiter=max(parts, key=lambda name: parts[name]),
        tokens_per_s=batch * point.output / (batch * prefill + point.output * decode) if batch else 0.0,
        ttft_bound_s=ttft_bound_s(point, point.prompt),
    )


def prefill_flops(point: ServingPoint, tokens: int) -> float:
    """FLOP of a prompt over all chips: 2 per parameter and token, 4 per pair and query feature, one row of logits."""
    total = 2.0 * point.architecture.vocab * point.architecture.hidden
    for work in point.model.layers:
        total += work.count * (2 * work.active * tokens + 4 * causal_pairs(tokens, work.layer.window) * work.layer.q_dim)
    return total


def ttft_bound_s(point: ServingPoint, tokens: int, cached: int = 0) -> float:
    """Seconds below which no engine has the first token of a prompt of `tokens`: physics, without any efficiency factor.

    All products of the prompt at the peak of all chips, or the weights that one token needs (a token's experts, not all) read once at the
    full bandwidth. `cached` tokens are in the prefix cache: only what comes after them is computed, one token at least. A measured time to
    first token below this bound is impossible, or the cache was warm.
    """
    if not 0 <= cached < tokens:
        raise ValueError(f"cached={cached} is not part of a prompt of {tokens} tokens with one left to compute")
    rest = prefill_flops(point, tokens) - (prefill_flops(point, cached) - prefill_flops(point, 0))
    experts = point.architecture.experts
    read = needed_bytes(point) + (expert_bytes(point) * experts.per_token / experts.count if experts else 0.0)
    return max(rest / (point.tp * point.peak), read / point.chip.hbm_bytes_per_s)


def prefill_s(cost: StepCost, tokens: int, step_tokens: int) -> float:
    """Seconds of one prompt on an engine that computes nothing else, in parts of `step_tokens`."""
    return sum(cost.seconds(Step(0, 0, 0, (chunk,))) for chunk in _chunks(tokens, step_tokens))


def decode_step(window: int, batch: int, context: int) -> Step:
    """The step that gives one token to each of `batch` sequences of `context` tokens."""
    return Step(batch, batch * context, batch * min(context, window), ())


def limits(point: ServingPoint, engine: EngineForecast) -> StepLimits:
    """What bounds the steps of the engine."""
    return StepLimits(point.step_tokens, point.max_num_seqs, engine.cache_room, engine.kv)


def _chunks(tokens: int, step_tokens: int) -> Iterator[Chunk]:
    for start in range(0, tokens, step_tokens):
        yield Chunk(start, min(step_tokens, tokens - start))


def _longest(kv: KvBytes, room: float) -> int:
    """The tokens that fill `room`: keys and values of the window first, all further ones only in global layers."""
    within = room / (kv.global_per_token + kv.sliding_per_token)
    if within <= kv.window:
        return max(0, floor(within))
    return floor((room - kv.window * kv.sliding_per_token) / kv.global_per_token) if kv.global_per_token else _NO_LIMIT


def _workspace(point: ServingPoint) -> float:
    """Activations of one step: the widest layer of all its tokens, and logits of every sequence in float32."""
    widest = max(4 * point.architecture.hidden + (2 * work.ffn + 2 * work.layer.q_dim) / point.tp for work in point.model.layers)
    return point.step_tokens * widest * point.width + 4 * point.max_num_seqs * point.architecture.vocab
