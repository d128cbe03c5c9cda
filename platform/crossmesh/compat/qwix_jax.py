"""Qwix: what it finds out while it runs a model, and how a function escapes it."""

from collections.abc import Callable
from typing import Any

from crossmesh.compat.parts import member, part

_FLAX = "qwix._src.utils.flax_util"


def not_intercepted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with Qwix looking away: it would take its factors for weights to adapt."""
    escaped: Callable[..., Any] = part("qwix", "qwix._src.interception", "disable_interceptions")(function)
    return escaped


def current_rule(provider: Any, operation: str) -> Any:
    """Return the rule that `provider` has for the module that runs, or None; the operation is not counted as another one."""
    rule, _ = member("qwix", provider, "_get_current_rule_and_op_id")(operation, repeated_call=True)
    return rule


def parameter_name(array: Any) -> str | None:
    """Return the name of the parameter of the running module that `array` is; None for an activation."""
    name: str | None = part("qwix", _FLAX, "find_param")(array)
    return name


def current_module() -> Any:
    """Return the module that runs."""
    return part("qwix", _FLAX, "get_current_module")()
