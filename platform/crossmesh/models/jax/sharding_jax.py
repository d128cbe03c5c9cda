"""Where activations and gathered weights lie while a model computes: stated, not left to the compiler.

A batch is split over three mesh axes of which fsdp also splits weights. Left to itself, XLA 0.10 computes products of such arrays wrongly
on some meshes: it permutes sequences between devices for one operand and not back (`tests/integration/test_jax_mesh.py` would see it).
So a layer gathers its weights over fsdp, as FSDP means it, and every activation is split over the batch axes and tp alone.
"""

from typing import Any

import jax
from jax.interpreters import pxla
from jax.sharding import NamedSharding, PartitionSpec

from crossmesh.hardware.mesh import BATCH_AXES

STREAM = (BATCH_AXES, None, "tp")
"""The residual stream [B, T, D]: its width over tp, so that what is kept of it for the backward pass is split as well."""
HEADS = (BATCH_AXES, None, "tp", None)
"""Queries, keys and values [B, T, N, H]."""


def context_mesh() -> Any:
    """The mesh of the surrounding `with mesh:`; an empty one outside. Tunix finds it in the same place."""
    return pxla.thread_resources.env.physical_mesh


def constrain(array: Any, *axes: Any) -> Any:
    """`array` lying as `axes` say on the surrounding mesh; as it is on one device or without a mesh."""
    mesh = context_mesh()
    if mesh.size <= 1:
        return array
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, PartitionSpec(*axes)))


def gathered(array: Any, axes: tuple[Any, ...]) -> Any:
    """A weight that `axes` split, whole over fsdp. An axis that does not divide it is left out, as where it is stored."""
    mesh = context_mesh()
    if mesh.size <= 1:
        return array
    return constrain(
        array, *(axis if axis == "tp" and size % mesh.shape[axis] == 0 else None for axis, size in zip(axes, array.shape, strict=True))
    )
