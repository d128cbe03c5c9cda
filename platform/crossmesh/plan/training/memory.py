"""Memory of a training step per chip, by kind: sums over how each tensor is split and what the backward pass keeps.

Source: modelled. What a compiler fuses, pads or keeps longer than needed is not in it.
"""

from dataclasses import dataclass, fields

from crossmesh.models.placement import NF4_WIDTH
from crossmesh.plan.model import LayerWork
from crossmesh.plan.point import TrainingPoint
from crossmesh.train.backend import loss_rows

_FULL, _MOMENTS = 4, 8
"""Bytes of a trained value or a gradient, and of its two moments: float32."""
_GATHERED_LAYERS = 2
"""Layers whose weights are whole at once under fsdp: the one that computes and the next."""


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes per chip."""

    weights: float
    """The base, or with full fine-tuning all that is trained."""
    adapter: float
    gradients: float
    optimizer: float
    """Two moments of every trained value."""
    activations: float
    """What the backward pass needs, kept by the remat policy for all layers."""
    loss_head: float
    """A block of logits and its gradient, float32."""
    temporaries: float
    """One layer at work, the scores of an attention that stores them, and weights gathered over fsdp."""

    @property
    def total(self) -> float:
        """All kinds together: they meet in the backward pass."""
        return sum(self.kinds.values())

    @property
    def kinds(self) -> dict[str, float]:
        """Bytes by kind."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


def training_memory(point: TrainingPoint) -> TrainingMemory:
    """Memory of one step of `point` on one chip."""
    base, trained = base_bytes(point, point.mesh.fsdp), trained_values(point)
    full = point.model.full
    # The sum over micro-batches and the newest gradient.
    gradients = _FULL * trained * (2 if point.micro_steps > 1 else 1)
    tokens = point.micro * point.length
    return TrainingMemory(
        weights=_FULL * trained if full else base,
        adapter=0.0 if full else _FULL * trained,
        gradients=gradients,
        optimizer=_MOMENTS * trained,
        activations=tokens * sum(work.count * kept_bytes(point, work, point.remat) for work in point.model.layers),
        loss_head=2 * 4 * min(loss_rows(on_cpu=False), tokens) * point.model.architecture.vocab / point.mesh.tp,
        temporaries=_temporaries(point, tokens),
    )


def kept_bytes(point: TrainingPoint, work: LayerWork, remat: str) -> float:
    """Bytes per token that one layer keeps for its backward pass under a policy.

    `layer` keeps the layer's input. `dots` keeps beside it the results of products. `none` on JAX keeps little more: XLA computes again,
    within the operation that reads it, what is cheap to compute (norms, rotation, the activation and its product). That is the input and
    the results of attention, of the sum after it and of the feed-forward part (4 of the hidden size), queries, keys, values, what
    attention gives, gate, up, and what LoRA makes between A and B. Hidden states are whole on every tensor-parallel rank, the rest is
    split.
    """
    hidden, tp, layer = point.model.architecture.hidden, point.mesh.tp, work.layer
    if remat == "layer":
        return point.width * hidden
    if remat == "none" and point.backend == "torch":
        return _eager_bytes(point, work)
    attention = layer.q_dim + 2 * layer.kv_dim
    whole = 3 if remat == "dots" else 4
    return point.width * (whole * hidden + (attention + layer.q_dim + 2 * work.ffn) / tp + work.ranks)


def _eager_bytes(point: TrainingPoint, work: LayerWork) -> float:
    """`none` on torch, where nothing is fused: what transformers and PEFT keep, operation by operation.

    LoRA's input in float32, of each module its own, and with dropout a byte of mask for each value; the input of each norm in float32;
    for attention queries, keys and values (a mask repeats them for every head), the mask as numbers, and the result; the gate before and
    after its activation and what it is multiplied with. Frozen matrices keep no input, trained ones do.
    """
    layer, tp, width, hidden = work.layer, point.mesh.tp, point.width, point.model.architecture.hidden
    masked = point.packed and point.attention in ("sdpa", "plain")
    keys = layer.q_dim if masked else layer.kv_dim
    inputs = (4 + point.dropout) * (work.inputs_whole + work.inputs_split / tp) + 4 * work.ranks
    if point.model.full:
        inputs = width * (5 * hidden + (layer.q_dim + work.ffn) / tp)
    norms = 4 * (work.norms * hidden + (layer.q_dim + 2 * layer.kv_dim) / tp)
    attention = width * (2 * layer.q_dim + 2 * keys) / tp + (width * point.length if masked else 0)
    return inputs + norms + attention + 3 * width * work.ffn / tp


def _temporaries(point: TrainingPoint, tokens: int) -> float:
    largest = max(kept_bytes(point, work, "none") for work in point.model.layers)
    # A compiler also keeps the gradients of the layer at work; eager operations let go of each as they use it.
    at_work = tokens * largest * (2 if point.remat != "none" and point.backend == "jax" else 1)
    return at_work + scores_bytes(point) * 2 + _gathered_bytes(point)


def scores_bytes(point: TrainingPoint) -> float:
    """Bytes of one layer's attention scores in float32, where the kernel stores them."""
    if point.attention != "plain":
        return 0.0
    heads = max(work.layer.heads for work in point.model.layers)
    return 4 * point.micro * heads / point.mesh.tp * point.length**2


def _gathered_bytes(point: TrainingPoint) -> float:
    """Weights that are whole over fsdp at once: two layers and the embedding."""
    if point.mesh.fsdp == 1:
        return 0.0
    matrices = sum(group.per_chip(point.mesh.tp, 1) for group in point.model.groups[point.backend] if group.kind == "matrix")
    table = sum(group.per_chip(point.mesh.tp, 1) for group in point.model.groups[point.backend] if group.kind == "table")
    layers = len(point.model.architecture.layers)
    return point.width * (_GATHERED_LAYERS * matrices / layers + table)


def trained_values(point: TrainingPoint) -> float:
    """Trained values that lie on one chip."""
    groups = point.model.groups[point.backend]
    return sum(group.per_chip(point.mesh.tp, point.mesh.fsdp) for group in groups if point.model.full or group.kind == "adapter")


def base_bytes(point: TrainingPoint, fsdp: int) -> float:
    """Bytes of the base on one chip when it is split over `fsdp` chips and the point's tensor parallelism."""
    total = 0.0
    for group in point.model.groups[point.backend]:
        if group.kind != "adapter":
            quantized = group.kind == "matrix" and point.spec.quantization == "nf4"
            total += (NF4_WIDTH if quantized else point.width) * group.per_chip(point.mesh.tp, fsdp)
    return total
