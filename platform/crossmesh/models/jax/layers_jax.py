"""What every family's model for the JAX backend shares: settings, remat, projections in parts or in 4 bits, hidden states as output.

A model is a subclass of Tunix's; the layers that Tunix makes in it become instances of subclasses made here or in the family's own file
(`families/qwen3/model_jax.py`). Importing a family's file imports Tunix, which changes flax's global state: workers only.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from crossmesh.compat.tunix_modules import become
from crossmesh.hardware.mesh import BATCH_AXES
from crossmesh.models.architecture import Rope
from crossmesh.models.families.rope import frequencies
from crossmesh.models.jax.nf4_jax import Nf4, dense
from crossmesh.models.jax.sharding_jax import STREAM, constrain, context_mesh, gathered

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


@dataclass(frozen=True)
class ModelConfig:
    """How a model computes what it computes."""

    dtype: str = "float32"
    remat: str = "none"
    """`none`, `layer` or `dots`."""
    attention: str = "plain"
    """`plain` or `splash`."""
    quantization: str = "none"
    """`none` or `nf4`."""


class HiddenStates:
    """Mixed into a model of Tunix: it gives back hidden states where Tunix makes logits, which the loss needs at a few places only."""

    layers: Any
    embedder: Any
    final_norm: Any

    def __call__(self, tokens: Any, positions: Any, cache: Any, segment_ids: Any) -> Any:
        """`tokens`, `positions` and `segment_ids` are [B, T]; returns hidden states [B, T, D] and no cache."""
        del cache
        x = self.embed(tokens)
        for layer in self.layers:
            x = run_layer(layer, x, positions, segment_ids)
        return self.final_norm(x), None

    def embed(self, tokens: Any) -> Any:
        """What the first layer gets."""
        return look_up(self.embedder, tokens)


class KeyValue(nnx.Module):
    """Two projections in place of one that Tunix fuses, each made by `make`.

    On the fused weight Qwix makes ONE A [D, rank] for K and V together, so K and V would read the same rank-r projection of the input:
    another, smaller model than PEFT's, where k_proj and v_proj each have their own A. Two modules give exactly PEFT's parameters.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self.k, self.v = make(), make()

    def __call__(self, x: Any) -> tuple[Any, Any]:
        """Keys and values of `x`."""
        return self.k(x), self.v(x)


def run_layer(layer: Any, x: Any, positions: Any, segment_ids: Any) -> Any:
    """The output of a decoder layer, keeping for the backward pass what the layer's remat says."""
    return run_block(layer, x, positions, segment_ids)[1]


def run_block(layer: Any, x: Any, positions: Any, segment_ids: Any, *more: Any) -> Any:
    """Everything that a decoder layer's `block` returns; `more` are its arguments after the mask.

    The layer is taken apart and put together again inside the checkpointed function, because its modules change while they run.
    """
    x = constrain(x, *STREAM)
    if layer.remat == "none":
        return layer.block(x, positions, None, segment_ids, *more)
    graph, state = nnx.split(layer)

    def compute(state: Any, x: Any, positions: Any, segment_ids: Any, *more: Any) -> Any:
        return nnx.merge(graph, _whole(state)).block(x, positions, None, segment_ids, *more)

    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if layer.remat == "dots" else None
    return jax.checkpoint(compute, policy=policy)(state, x, positions, segment_ids, *more)


def _multiply(module: Any, x: Any) -> Any:
    """The product of a projection that is stored in parts or in 4 bits, where its layer has not made it whole already.

    What is made whole here is made again in the backward pass, never kept; the product itself is not needed there.
    """
    multiply = type(module).__bases__[0].__call__
    mesh = context_mesh()
    if not module.makes_whole or (not module.quantized and (mesh.size <= 1 or mesh.shape["fsdp"] == 1)):
        return multiply(module, x)
    graph, state = nnx.split(module)
    return jax.checkpoint(lambda state, x: multiply(nnx.merge(graph, _whole(state)), x))(state, x)


def _whole(state: Any) -> Any:
    """Weights gathered over fsdp, then unpacked."""

    def one(variable: Any) -> Any:
        axes = variable.get_metadata().get("out_sharding")
        if axes is None:
            return variable
        value = jax.tree.map(lambda array: gathered(array, axes), variable.get_value())
        return variable.replace(dense(value) if isinstance(value, Nf4) else value)

    return nnx.from_flat_state([(path, one(variable)) for path, variable in state.flat_state()])


@functools.cache
def _product(kind: Any) -> Any:
    """A projection of Tunix or flax with `makes_whole` and `quantized`, set on the instance."""

    class Product(kind):
        def __call__(self, x: Any) -> Any:
            return _multiply(self, x)

    return Product


def rotate(x: Any, positions: Any, rope: Rope) -> Any:
    """Rotate queries or keys [B, T, N, H] by `rope`, in float32."""
    inverse, scaling = frequencies(rope, x.shape[-1])
    angles = positions[..., jnp.newaxis, jnp.newaxis] * jnp.asarray(inverse)
    sine, cosine = jnp.sin(angles) * scaling, jnp.cos(angles) * scaling
    first, second = jnp.split(x, 2, axis=-1)
    rotated = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return rotated.astype(x.dtype)


def look_up(embedder: Any, tokens: Any) -> Any:
    """Rows of the table, which is whole over fsdp while they are taken."""
    table = embedder.input_embedding
    return gathered(table.get_value(), table.get_metadata()["out_sharding"])[tokens]


def activations(sharding: Any) -> Any:
    """Tunix's sharding with the batch over all axes whose ranks see other sequences: Tunix knows fsdp only."""
    names = ("act_btd", "act_btf", "act_btnh")
    return replace(sharding, **{name: (BATCH_AXES, *getattr(sharding, name)[1:]) for name in names})


def set_up(layer: Any, kind: type, attention: type, projections: tuple[type, ...], settings: ModelConfig) -> None:
    """Make Tunix's `layer` compute as `settings` say: as a `kind` with `attention`, its modules of type `projections` as `_Product`s."""
    become(layer, kind, "block")
    layer.remat = settings.remat
    become(layer.attn, attention, "block")
    layer.attn.kernel = settings.attention
    as_products(layer, projections, settings, inside_remat=settings.remat != "none")


def as_products(parent: Any, projections: tuple[type, ...], settings: ModelConfig, *, inside_remat: bool) -> None:
    """Make modules of type `projections` in `parent` compute with weights in parts or in 4 bits, made whole by whom runs them or here."""
    for _, module in parent.iter_modules():
        base: Any = type(module)
        if base in projections:
            become(module, _product(base), "__call__")
            module.quantized, module.makes_whole = settings.quantization != "none", not inside_remat
