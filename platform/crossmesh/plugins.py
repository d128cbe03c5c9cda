"""Implementations that are chosen by name: those of crossmesh, and those that other packages add by entry points.

A package adds one to its `pyproject.toml`, and it is there wherever that package is installed:

    [project.entry-points."crossmesh.metrics"]
    joules = "my_package.energy:JOULES_PER_TOKEN"
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from crossmesh.errors import ChoiceError, InputError, closest_name, require_choice

T = TypeVar("T")


@dataclass(frozen=True)
class Registry(Generic[T]):
    """Implementations of one interface, by name; each is imported when it is first asked for.

    Attributes:
        group: entry-point group that other packages add to, e.g. `crossmesh.metrics`.
        kind: what one of them is called in messages, e.g. `metric`.
        builtin: `module:attribute` of those of crossmesh, by name.
    """

    group: str
    kind: str
    builtin: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """All names, those of crossmesh first. Nothing is imported."""
        return tuple(self._found)

    def require(self, key: str, name: str) -> None:
        """Raise `ChoiceError` unless an implementation has the name that `key` gives. Nothing is imported."""
        try:
            require_choice(key, name, self.names)
        except ChoiceError as error:
            raise ChoiceError(str(error), key, tuple(sorted(self.builtin)), extensible=True) from None

    def load(self, name: str) -> T:
        """Import the implementation called `name` and return it.

        Raises `InputError` for a name that nothing has, and for an installed package whose entry point cannot be imported.
        """
        if name not in self._found:
            hint = f" Did you mean {close!r}?" if (close := closest_name(name, self._found)) else ""
            raise InputError(
                f"There is no {self.kind} {name!r}.{hint} Allowed: {', '.join(self._found)}, or one of a package whose "
                f"entry points have it in {self.group!r}."
            )
        try:
            loaded: T = self._found[name].load()
        except (ImportError, AttributeError) as error:
            if name in self.builtin:
                raise
            raise InputError(
                f"The {self.kind} {name!r} of an installed package cannot be imported ({self._found[name].value}): {error}. "
                "Repair or uninstall that package."
            ) from error
        return loaded

    def make(self, key: str, name: str, options_key: str, options: Mapping[str, Any]) -> Any:
        """Call the class called `name` with `options`; `key` and `options_key` are what a user sets the two by.

        Raises `InputError` for options that it does not take.
        """
        kind: Any = self.load(name)
        try:
            inspect.signature(kind).bind(**options)
        except TypeError as error:
            allowed = ", ".join(inspect.signature(kind).parameters) or "none"
            raise InputError(f"{options_key}={dict(options)} does not fit {key}={name!r}: {error}. Allowed options: {allowed}.") from None
        return kind(**options)

    @cached_property
    def _found(self) -> dict[str, EntryPoint]:
        own = {name: EntryPoint(name, value, self.group) for name, value in self.builtin.items()}
        others = {one.name: one for one in entry_points(group=self.group)}
        if doubled := sorted(own.keys() & others.keys()):
            raise InputError(
                f"An installed package calls a {self.kind} {doubled[0]!r} ({others[doubled[0]].value}), as crossmesh does. "
                "Give it another name, or uninstall that package."
            )
        return own | others
