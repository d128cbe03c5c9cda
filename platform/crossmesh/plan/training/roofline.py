"""How long a training step takes, phase by phase: work over what the chip can do in that phase. Source: modelled.

A phase takes the longer of its products and its memory traffic, each at the stated efficiency; phases follow one another, and gathering
weights over fsdp hides behind computation as far as stated. Pure arithmetic, well under a millisecond.
"""

from dataclasses import dataclass, fields, replace

from crossmesh.plan.model import LayerWork
from crossmesh.plan.point import TrainingPoint
from crossmesh.plan.training.efficiency import Efficiency
from crossmesh.plan.training.lengths import causal_pairs
from crossmesh.plan.training.links import all_gather_s, all_reduce_s, network_all_reduce_s
from crossmesh.plan.training.memory import base_bytes, scores_bytes, trained_values

_OPTIMIZER_BYTES = 32
"""Memory traffic of AdamW per trained value: value, gradient and two moments read, value and moments written, float32, and the sum."""
_SCORE_PASSES = 10
"""Times that an attention that stores its scores reads or writes them: 4 forwards, 6 backwards; 4 more when they are made again."""
_FUSED = ("splash", "flex", "flash")
_BACKWARD_FUSED, _BACKWARD_PLAIN = 2.5, 2.0
"""Products of attention's backward pass against its forward pass: a fused kernel makes the scores again (arXiv 2205.14135)."""


@dataclass(frozen=True)
class Phases:
    """Seconds of an optimizer step on every chip, by phase."""

    matmul: float
    """Projections, feed-forward and LoRA: forward, backward and what remat makes again."""
    attention: float
    elementwise: float
    """Norms, rotations, activations and residual sums: memory traffic."""
    loss_head: float
    optimizer: float
    tp_collectives: float
    """All-reduces of hidden states over tp; nothing hides them."""
    fsdp_collectives: float
    """Gathering weights and scattering gradients over fsdp, as far as nothing hides it."""
    data_collectives: float
    """All-reduce of gradients over data and between slices, once a step."""

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return sum(self.seconds.values())

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def limiter(self) -> str:
        """The longest phase."""
        return max(self.seconds, key=lambda name: self.seconds[name])


def phases(point: TrainingPoint, factors: Efficiency) -> Phases:
    """Time one optimizer step of `point` at `factors` of the chip's peaks: its micro-batches, width by width, and what is once a step."""
    parts = [_phases(replace(point, length=width), factors, point.micro_steps * share) for width, share in point.filling.widths]
    once = {name: parts[0].seconds[name] for name in ("loss_head", "optimizer", "data_collectives")}
    return Phases(**({name: sum(part.seconds[name] for part in parts) for name in parts[0].seconds} | once))


def _phases(point: TrainingPoint, factors: Efficiency, steps: float) -> Phases:
    """The phases of `steps` micro-batches of one length, and those that are once a step."""
    chip, mesh = point.chip, point.mesh
    tokens = point.micro * point.length
    bandwidth = chip.hbm_bytes_per_s * factors.bandwidth
    weights_read = _passes(point) * base_bytes(point, 1) / bandwidth
    matmul = max(matmul_flops(point, tokens) / (point.peak * factors.matmul), weights_read)
    attention = _attention_s(point, tokens, factors, bandwidth)
    elementwise = tokens * sum(work.count * _elementwise_bytes(point, work) for work in point.model.layers) / bandwidth
    head = loss_head_flops(point) / (point.peak * factors.matmul)
    hidden = tokens * point.model.architecture.hidden * point.width
    layers = len(point.model.architecture.layers)
    reduces = layers * (4 + (1 if point.remat != "none" else 0)) + 1
    tp = 0.0 if mesh.tp == 1 else reduces * (all_reduce_s(chip, mesh.tp, hidden) / factors.link + factors.latency_s)
    computing = matmul + attention + elementwise
    gathered = _fsdp_s(point, factors)
    trained = trained_values(point)
    between = (
        all_reduce_s(chip, mesh.data, 4 * trained) / factors.link + network_all_reduce_s(chip, mesh.dcn, 4 * trained) / factors.network
    )
    return Phases(
        matmul=steps * matmul,
        attention=steps * attention,
        elementwise=steps * elementwise,
        loss_head=head,
        optimizer=_OPTIMIZER_BYTES * trained / bandwidth,
        tp_collectives=steps * tp,
        fsdp_collectives=steps * max(0.0, gathered - factors.fsdp_overlap * computing),
        data_collectives=between,
    )


def lower_bound_s(point: TrainingPoint) -> float:
    """Seconds below which no program can compute a step: all products at peak, everything else free."""
    return step_flops(point) / point.peak


def step_flops(point: TrainingPoint) -> float:
    """FLOP of an optimizer step, per chip."""
    sized = [(replace(point, length=width), share) for width, share in point.filling.widths]
    return loss_head_flops(point) + point.micro_steps * sum(share * layers_flops(one) for one, share in sized)


def layers_flops(point: TrainingPoint) -> float:
    """FLOP of one micro-batch of `point.length` through all layers, per chip."""
    tokens = point.micro * point.length
    return matmul_flops(point, tokens) + attention_flops(point, tokens)


def _passes(point: TrainingPoint) -> int:
    """Times that a micro-batch is multiplied with the weights: forward, for the gradient of its input, and again under remat."""
    return 2 + (1 if point.remat == "layer" else 0)


def matmul_flops(point: TrainingPoint, tokens: float) -> float:
    """FLOP of `tokens` through all projections, per chip.

    A product with a matrix of P parameters takes 2 P per token (arXiv 2001.08361): forward, for the input's gradient, again under
    `remat=layer`; and for the weights' gradient where they are trained.
    """
    tp, passes = point.mesh.tp, _passes(point)
    total = 0.0
    for work in point.model.layers:
        frozen = 2 * work.active / tp * (passes + (1 if point.model.full else 0))
        adapter = 2 * (work.adapter_split / tp + work.adapter_whole) * (passes + 1)
        total += work.count * (frozen + adapter)
    return tokens * total


def attention_flops(point: TrainingPoint, tokens: float) -> float:
    """FLOP of attention for `tokens` of the sequences, per chip: 4 per pair and feature of the queries, forward."""
    total = 0.0
    for work in point.model.layers:
        total += work.count * 4 * seen_pairs(point, work) * work.layer.q_dim
    return tokens * total / point.mesh.tp * _attention_passes(point)


def _attention_passes(point: TrainingPoint) -> float:
    fused = point.attention in _FUSED
    again = 1 if point.remat == "layer" or (point.remat == "dots" and not fused) else 0
    return 1 + (_BACKWARD_FUSED if fused else _BACKWARD_PLAIN) + again


def seen_pairs(point: TrainingPoint, work: LayerWork) -> float:
    """Pairs that the kernel computes, per token of a sequence.

    `plain` computes all and then masks; so does `sdpa` when it is given a mask, which it is for packed rows and for windows. `splash` skips
    what the causal mask and the window rule out, not what other rows do; `flex` and `flash` skip that too.
    """
    length, window = point.length, work.layer.window
    if point.attention == "plain" or (point.attention == "sdpa" and (point.packed or window)):
        return length
    if point.attention in ("flex", "flash"):
        return point.filling.pairs(window) * point.filling.tokens / point.filling.computed
    return causal_pairs(length, window) / length


def _attention_s(point: TrainingPoint, tokens: float, factors: Efficiency, bandwidth: float) -> float:
    share = factors.fused_attention if point.attention in _FUSED else factors.plain_attention
    products = attention_flops(point, tokens) / (point.peak * share)
    passes = _SCORE_PASSES + (4 if point.remat != "none" else 0)
    layers = len(point.model.architecture.layers)
    return max(products, layers * passes * scores_bytes(point) / bandwidth)


def _elementwise_bytes(point: TrainingPoint, work: LayerWork) -> float:
    """Memory traffic per token of one layer beside its products: forward, twice that backward, and again under remat.

    Forward reads or writes 12 arrays of the hidden size (four norms and two residual sums, fused with their neighbours), 3 of the inner
    features and 4 of queries, keys and values.
    """
    layer, tp = work.layer, point.mesh.tp
    forward = 12 * point.model.architecture.hidden + (3 * work.ffn + 4 * (layer.q_dim + 2 * layer.kv_dim)) / tp
    return point.width * forward * (3 + (1 if point.remat != "none" else 0))


def loss_head_flops(point: TrainingPoint) -> float:
    """FLOP of logits and their gradients for the tokens of a step that carry loss, per chip: 2 V D for each, another where V is trained."""
    architecture = point.model.architecture
    rows = point.filling.tokens * point.loss_share / point.mesh.dp_size
    return rows * 2 * architecture.vocab * architecture.hidden * (3 if point.model.full else 2) / point.mesh.tp


def _fsdp_s(point: TrainingPoint, factors: Efficiency) -> float:
    """Seconds of fsdp's collectives in a micro-step: weights gathered forward and backward, gradients scattered."""
    fsdp = point.mesh.fsdp
    if fsdp == 1:
        return 0.0
    gather = 2 * all_gather_s(point.chip, fsdp, base_bytes(point, 1))
    scatter = all_gather_s(point.chip, fsdp, 4 * trained_values(point) * fsdp)
    layers = len(point.model.architecture.layers)
    return (gather + scatter) / factors.link + 3 * layers * factors.latency_s
