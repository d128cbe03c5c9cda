"""Where each tensor of a model lies on the mesh: pure rules, checked before a device is touched.

One table says which axis of a tensor is split over which mesh axis; the JAX backend shards by it, and the torch backend's parallel plan
follows the same rules. A tensor that an axis does not divide is refused by name; what is held whole by several devices is reported with
what that costs. Planners call this thousands of times: layers of one kind are looked at once.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd, prod

from crossmesh.config.training import NF4_BLOCK, ModelSpec
from crossmesh.errors import InputError
from crossmesh.hardware.mesh import MeshShape
from crossmesh.models.architecture import Architecture, LayerKind, Weight
from crossmesh.models.lora import LoraModule
from crossmesh.models.targets import layer_weights, outer_weights, projections

Axes = tuple[str | None, ...]
"""Mesh axis of each axis of a tensor; None where it is not split."""

_SHOWN = 4
"""Kinds of tensors that the message names."""
LARGE = 1 << 20
"""Bytes per device from which a replicated kind of tensor is named in the report."""
NF4_WIDTH = 0.5 + 4 / NF4_BLOCK
"""Bytes of a value in 4 bits with its share of a float32 scale."""

_SHARDED: dict[str, str] = {
    **dict.fromkeys(("vocab", "heads", "kv_heads", "ffn", "norm"), "tp"),
    **dict.fromkeys(("hidden", "per_layer_width"), "fsdp"),
}
"""Mesh axis by what an axis of the tensor counts: Tunix's sharding, for every family. One axis that is not here is not split."""
_SIZES = {"float32": 4, "bfloat16": 2}
_TRAINED = 12
"""Bytes of a trained value: itself and two moments, float32."""
TORCH_SPLIT = {"heads": "attention heads", "kv_heads": "key/value heads", "ffn": "inner features", "vocab": "tokens"}
"""What tensor parallelism divides on torch; FSDP2 divides every tensor besides, and fills up what does not divide."""


@dataclass(frozen=True)
class Replicated:
    """A kind of tensor of which several devices hold the same values, in all layers together."""

    name: str
    """Layer numbers are replaced by `*`."""
    count: int
    """Tensors of this kind."""
    over: tuple[str, ...]
    """Mesh axes whose devices hold the same."""
    bytes: int
    """Per device, over what it would hold if the tensor were split over these axes as well; trained values with their moments."""


@dataclass(frozen=True)
class Placement:
    """What `place` found."""

    large: tuple[Replicated, ...]
    """Kinds of tensors that cost `LARGE` bytes per device or more, the largest first."""
    small_bytes: int
    """What all other replicated tensors cost per device."""

    @property
    def message(self) -> str:
        """What to tell a person; empty when nothing large is replicated."""
        if not self.large:
            return ""
        shown = ", ".join(f"{one.name} over {' and '.join(one.over)} {_mib(one.bytes)}" for one in self.large[:_SHOWN])
        more = f", {len(self.large) - _SHOWN} more kinds of tensors" if len(self.large) > _SHOWN else ""
        total = sum(one.bytes for one in self.large) + self.small_bytes
        return (
            f"Each device holds {_mib(total)} that others hold as well, over an even split of every tensor: {shown}{more}, "
            f"small ones {_mib(self.small_bytes)}."
        )


@dataclass(frozen=True)
class _Tensor:
    """One tensor, or one of `count` equal ones."""

    name: str
    shape: tuple[int, ...]
    axes: Axes
    parts: tuple[str, ...]
    """What an error calls each axis."""
    width: float
    """Bytes of a value."""
    count: int
    also: tuple[str, ...] = ()
    """Mesh axes that split it besides, evenly or not."""


def weight_axes(weight: Weight) -> Axes:
    """Mesh axis of each axis of the Tunix tensor."""
    return tuple(_SHARDED.get(name) for name in weight.tunix_dims)


def lora_axes(weight: Weight) -> tuple[Axes, Axes]:
    """Mesh axes of Qwix's `lora_a` [*in, rank] and `lora_b` [rank, *out] of `weight`: those of the weight; the rank is not split."""
    split = [_SHARDED.get(name) for name in weight.dims]
    outs = len(weight.out_shape)
    return (*split[outs:], None), (None, *split[:outs])


def torch_axes(weight: Weight) -> Axes:
    """Mesh axis of each axis of the Hugging Face tensor on the torch backend, [*out, *in], before FSDP divides it besides."""
    return tuple("tp" if name in TORCH_SPLIT else None for name in weight.dims)


def row_parallel(weight: Weight) -> bool:
    """Whether tp divides the input of a projection on the torch backend; where not, its output."""
    return "tp" in torch_axes(weight)[len(weight.out_shape) :]


def nf4_view(weight: Weight) -> tuple[tuple[int, ...], int]:
    """Shape in which the Tunix tensor of a projection is cut into blocks of 4-bit values, and the axis that they lie along.

    A block is `NF4_BLOCK` values of one row of the checkpoint's [out, in], which is where bitsandbytes has it. An input of several heads
    [heads, head_dim] is seen as [blocks, `NF4_BLOCK`]: a block may reach over narrow heads. Raises `InputError` when blocks do not divide
    the input.
    """
    if weight.in_features % NF4_BLOCK:
        raise InputError(
            f"model.quantization=nf4: {weight.hf_name} has {weight.in_features} input features, which cannot be cut into blocks of "
            f"{NF4_BLOCK}. Allowed for this model: model.quantization=none."
        )
    shape = list(weight.tunix_shape)
    order = weight.axes or tuple(range(len(shape)))
    first, *others = (order.index(len(weight.out_shape) + axis) for axis in range(len(weight.in_shape)))
    if others:
        shape[first : first + 2] = [weight.in_features // NF4_BLOCK, NF4_BLOCK]
    return tuple(shape), others[0] if others else first


def place(architecture: Architecture, mesh: MeshShape, backend: str, model: ModelSpec, modules: tuple[LoraModule, ...]) -> Placement:
    """Check that `mesh` divides every tensor that it splits, and say what is replicated.

    `backend` is `jax`, whose tensors are called as Tunix calls them, or `torch`, with Hugging Face names. `modules` carry LoRA; where none
    does, all weights are trained. Raises `InputError` naming the first tensor that an axis does not divide, and the sizes of that axis
    that are possible.
    """
    tensors = _tensors(architecture, backend, model.dtype, model.quantization, tuple((module.target.hf, module.rank) for module in modules))
    if backend == "torch" and architecture.experts and mesh.tp > 1:
        fused = next(weight.hf_name for weight in layer_weights(architecture, 0) if weight.hf_param == "gate_up_proj")
        raise InputError(
            f"{fused} holds gate and up of all experts in one tensor, which the torch backend "
            f"does not split over tp={mesh.tp}. Allowed: mesh.tp=1 (mesh.fsdp={mesh.fsdp * mesh.tp} splits them as well), or backend=jax."
        )
    ways = {axis: getattr(mesh, axis) for axis in ("fsdp", "tp")}
    _check(tensors, ways, mesh.devices)
    costs: dict[tuple[str, tuple[str, ...]], Replicated] = {}
    for tensor in tensors:
        split = [axis for axis in (*tensor.axes, *tensor.also) if axis]
        over = tuple(axis for axis, size in ways.items() if size > 1 and axis not in split)
        if not over:
            continue
        held = prod(tensor.shape) * tensor.width * tensor.count / prod(ways[axis] for axis in split)
        cost = round(held * (1 - 1 / prod(ways[axis] for axis in over)))
        name = re.sub(r"(?<=layers\.)\d+", "*", tensor.name)
        before = costs.get((name, over), Replicated(name, 0, over, 0))
        costs[name, over] = Replicated(name, before.count + tensor.count, over, before.bytes + cost)
    large = sorted((one for one in costs.values() if one.bytes >= LARGE), key=lambda one: -one.bytes)
    return Placement(tuple(large), sum(one.bytes for one in costs.values() if one.bytes < LARGE))


def _check(tensors: tuple[_Tensor, ...], ways: Mapping[str, int], devices: int) -> None:
    for axis, size in ways.items():
        if size == 1:
            continue
        split = [(tensor, tensor.axes.index(axis)) for tensor in tensors if axis in tensor.axes]
        for tensor, at in split:
            if tensor.shape[at] % size:
                common = gcd(*(tensor.shape[at] for tensor, at in split))
                possible = ", ".join(str(one) for one in range(1, devices + 1) if common % one == 0)
                raise InputError(
                    f"{tensor.name} {tensor.parts[at].format(tensor.shape[at])}, {axis}={size}. "
                    f"Allowed: {axis} one of {possible}. Set mesh.{axis}."
                )


@functools.lru_cache(maxsize=64)
def _tensors(
    architecture: Architecture, backend: str, dtype: str, quantization: str, adapted: tuple[tuple[str, int], ...]
) -> tuple[_Tensor, ...]:
    """The tensors of the model, one for each kind, with the number of layers that have it."""
    make = _jax_tensors if backend == "jax" else _torch_tensors
    plain: float = _SIZES[dtype] if adapted else _TRAINED
    found = [tensor for weight in outer_weights(architecture) for tensor in make(weight, plain, 0, 1)]
    ranks = dict(adapted)
    kinds: dict[tuple[LayerKind, tuple[int, ...]], list[int]] = {}
    for index, layer in enumerate(architecture.layers):
        own = tuple(ranks.get(weight.hf, 0) for weight in projections(architecture, index).values())
        kinds.setdefault((layer, own), []).append(index)
    for first, *others in kinds.values():
        named = projections(architecture, first)
        matrices = {weight.hf_name for weight in named.values()}
        for weight in layer_weights(architecture, first):
            width, rank = plain, 0
            if weight.hf_name in matrices:  # A bias is in the same module, and has neither.
                rank = ranks.get(weight.hf, 0)
                if quantization == "nf4":
                    nf4_view(weight)  # Refused on either backend when it cannot be.
                    width = NF4_WIDTH
            found.extend(make(weight, width, rank, 1 + len(others)))
    return tuple(found)


def _jax_tensors(weight: Weight, width: float, rank: int, count: int) -> Iterator[_Tensor]:
    """The Tunix tensor of `weight` and, with a rank, its adapter."""
    name, parts = ".".join(map(str, weight.tunix_path)), tuple(f"axis {axis} has size {{}}" for axis in range(len(weight.tunix_shape)))
    yield _Tensor(name, weight.tunix_shape, weight_axes(weight), parts, width, count)
    if rank:
        for letter, shape, axes in zip("ab", ((*weight.in_shape, rank), (rank, *weight.out_shape)), lora_axes(weight), strict=True):
            yield _Tensor(f"{name}_lora_{letter}", shape, axes, parts, _TRAINED, count)


def _torch_tensors(weight: Weight, width: float, rank: int, count: int) -> Iterator[_Tensor]:
    """The Hugging Face tensor of `weight`, its axes split into heads, and, with a rank, its adapter."""
    axes = torch_axes(weight)
    parts = tuple(f"has {{}} {TORCH_SPLIT.get(name, name)}" for name in weight.dims)
    outs = len(weight.out_shape)
    yield _Tensor(weight.hf_name, weight.out_shape + weight.in_shape, axes, parts, width, count, ("fsdp",))
    if rank:
        a, b = (rank, *weight.in_shape), (*weight.out_shape, rank)
        yield _Tensor(f"{weight.hf}.lora_A.weight", a, (None, *axes[outs:]), parts, _TRAINED, count, ("fsdp",))
        yield _Tensor(f"{weight.hf}.lora_B.weight", b, (*axes[:outs], None), parts, _TRAINED, count, ("fsdp",))


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
