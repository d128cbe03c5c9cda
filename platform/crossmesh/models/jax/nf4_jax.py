"""Frozen projections in 4 bits (QLoRA): the very values that bitsandbytes makes of a weight, two to a byte.

Blocks, scales and rounding are bitsandbytes' (NF4, blocks of 64, no double quantization), so that both backends train on the same base.
JAX's own 4-bit type takes a byte a value on some platforms, so values are packed here. They are unpacked where they are multiplied, in
the forward pass and again in the backward pass (`layers_jax.py`); nothing is ever added to them.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crossmesh.config.training import NF4_BLOCK

LEVELS = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""NF4's values (https://arxiv.org/abs/2305.14314, appendix E)."""
_BOUNDS = tuple(np.float32((low + high) / 2) for low, high in itertools.pairwise(LEVELS))
"""A value above a bound has a higher code."""
_SMALLEST = np.finfo(np.float32).tiny


@functools.partial(jax.tree_util.register_dataclass, data_fields=("codes", "scale"), meta_fields=("shape", "axis", "dtype"))
@dataclass(frozen=True)
class Nf4:
    """A tensor in blocks along one axis, each with its scale; `placement.nf4_view` says in which shape it is cut."""

    codes: Any
    """uint8, that shape with the axis halved: value i of a block in the low bits, value i + half a block in the high bits."""
    scale: Any
    """float32, that shape with one entry a block: its largest absolute value."""
    shape: tuple[int, ...]
    """Of the tensor itself."""
    axis: int
    dtype: Any
    """Of the values when they are unpacked."""


def abstract_nf4(shape: tuple[int, ...], dtype: Any, view: tuple[int, ...], axis: int) -> Nf4:
    """What `quantise` makes of a tensor of `shape` cut in the shape `view`, without arrays."""

    def with_size(size: int) -> tuple[int, ...]:
        return (*view[:axis], size, *view[axis + 1 :])

    codes = jax.ShapeDtypeStruct(with_size(view[axis] // 2), jnp.uint8)
    return Nf4(codes, jax.ShapeDtypeStruct(with_size(view[axis] // NF4_BLOCK), jnp.float32), shape, axis, dtype)


def quantise(dense: Any, shape: tuple[int, ...], axis: int) -> Nf4:
    """Round `dense`, which is the tensor of `shape` as it is cut, in blocks along `axis`. Jit it."""
    blocks = _in_blocks(dense.astype(jnp.float32), axis, NF4_BLOCK)
    scale = jnp.max(jnp.abs(blocks), axis=axis + 1, keepdims=True)
    # Times the reciprocal, as bitsandbytes does it: a quotient rounds otherwise.
    relative = blocks * (1 / jnp.maximum(scale, _SMALLEST))
    codes = sum((relative > bound).astype(jnp.uint8) for bound in _BOUNDS)
    low, high = jnp.split(codes, 2, axis=axis + 1)
    halved = (*dense.shape[:axis], dense.shape[axis] // 2, *dense.shape[axis + 1 :])
    return Nf4((low | high << 4).reshape(halved), jnp.squeeze(scale, axis + 1), shape, axis, dense.dtype)


def dense(packed: Nf4) -> Any:
    """The values of `packed` in its compute precision."""
    codes = _in_blocks(packed.codes, packed.axis, NF4_BLOCK // 2)
    codes = jnp.concatenate([codes & 15, codes >> 4], axis=packed.axis + 1)
    values = _levels(codes) * jnp.expand_dims(packed.scale, packed.axis + 1)
    return values.reshape(packed.shape).astype(packed.dtype)


def _in_blocks(array: Any, axis: int, size: int) -> Any:
    return array.reshape((*array.shape[:axis], array.shape[axis] // size, size, *array.shape[axis + 1 :]))


def _levels(codes: Any) -> Any:
    """The NF4 value of each code, chosen bit by bit: on a TPU a look-up in a table is a slow gather, choices fuse into the unpacking."""
    values: list[Any] = [np.float32(level) for level in LEVELS]
    for bit in range(4):
        is_set = (codes >> bit & 1).astype(jnp.bool_)
        values = [jnp.where(is_set, high, low) for low, high in zip(values[::2], values[1::2], strict=True)]
    return values[0]
