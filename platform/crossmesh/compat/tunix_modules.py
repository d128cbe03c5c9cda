"""Tunix: attributes of its attention that have no public name, and the classes of modules that it makes by itself. Imports no JAX."""

from typing import Any

from crossmesh.compat.parts import member, swap_class

QUERY_NORM, KEY_NORM = "_query_norm", "_key_norm"
"""Modules of an attention with norms of queries and keys."""


def query_norm(attention: Any) -> Any:
    """Return the norm of queries."""
    return member("google-tunix", attention, QUERY_NORM)


def key_norm(attention: Any) -> Any:
    """Return the norm of keys."""
    return member("google-tunix", attention, KEY_NORM)


def drop_norms(attention: Any) -> None:
    """Remove the norms of queries and keys with their parameters."""
    for name in (QUERY_NORM, KEY_NORM):
        member("google-tunix", attention, name)
        delattr(attention, name)


def become(module: Any, kind: type, method: str) -> None:
    """Make a module that Tunix made inside a model a `kind`, which overrides `method`.

    Tunix's models choose the classes of their layers themselves. Only the model itself is made as a subclass from the start.
    """
    swap_class("google-tunix", module, kind, (method,))
