"""Frozen projections in 4 bits (QLoRA): Qwix's NF4 values and scales, two values to a byte.

JAX's own 4-bit type takes a byte a value on some platforms, so values are packed here. They are unpacked where they are multiplied, in
the forward pass and again in the backward pass (`layers_jax.py`); nothing is ever added to them.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import qwix
from qwix._src.core.numerics import get_nf4_buckets


@functools.partial(jax.tree_util.register_dataclass, data_fields=("codes", "scale"), meta_fields=("axis", "dtype"))
@dataclass(frozen=True)
class Nf4:
    """A tensor in tiles along one axis, each with its scale."""

    codes: Any
    """uint8, the tensor's shape with the tiled axis halved: value i of a tile in the low bits, value i + tile/2 in the high bits."""
    scale: Any
    """float32, the tensor's shape with one entry a tile."""
    axis: int
    dtype: Any
    """Of the values when they are unpacked."""


def abstract_nf4(shape: tuple[int, ...], dtype: Any, axis: int, tile: int) -> Nf4:
    """What `quantise` makes of a tensor of `shape`, without arrays."""

    def with_size(size: int) -> tuple[int, ...]:
        return (*shape[:axis], size, *shape[axis + 1 :])

    codes = jax.ShapeDtypeStruct(with_size(shape[axis] // 2), jnp.uint8)
    return Nf4(codes, jax.ShapeDtypeStruct(with_size(shape[axis] // tile), jnp.float32), axis, dtype)


def quantise(dense: Any, axis: int, tile: int) -> Nf4:
    """Round `dense` to NF4 in tiles of `tile` values along `axis`. Jit it."""
    others = tuple(other for other in range(dense.ndim) if other != axis)
    made = qwix.quantize(dense.astype(jnp.float32), "nf4", channelwise_axes=others, tiled_axes={axis: tile})
    low, high = jnp.split(_tiled(made.qvalue.astype(jnp.uint8), axis, tile), 2, axis=axis + 1)
    shape = (*dense.shape[:axis], dense.shape[axis] // 2, *dense.shape[axis + 1 :])
    return Nf4((low | high << 4).reshape(shape), made.scale, axis, dense.dtype)


def dense(packed: Nf4) -> Any:
    """The values of `packed` in its compute precision."""
    tiles = packed.scale.shape[packed.axis]
    codes = _tiled(packed.codes, packed.axis, packed.codes.shape[packed.axis] // tiles)
    codes = jnp.concatenate([codes & 15, codes >> 4], axis=packed.axis + 1)
    values = _levels(codes) * jnp.expand_dims(packed.scale, packed.axis + 1)
    shape = list(packed.codes.shape)
    shape[packed.axis] *= 2
    return values.reshape(shape).astype(packed.dtype)


def _tiled(array: Any, axis: int, tile: int) -> Any:
    return array.reshape((*array.shape[:axis], array.shape[axis] // tile, tile, *array.shape[axis + 1 :]))


def _levels(codes: Any) -> Any:
    """The NF4 value of each code, chosen bit by bit: on a TPU a look-up in a table is a slow gather, choices fuse into the unpacking."""
    values = list(get_nf4_buckets())
    for bit in range(4):
        is_set = (codes >> bit & 1).astype(jnp.bool_)
        values = [jnp.where(is_set, high, low) for low, high in zip(values[::2], values[1::2], strict=True)]
    return values[0]
