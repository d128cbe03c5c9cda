"""Errors that a person reads, and the exit code each one ends a job with.

Every message says what was given, what is wrong, what is allowed and what to do. Anything that is not a `CrossmeshError` is a bug
of ours and keeps its traceback.
"""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class CrossmeshError(Exception):
    """A failure whose message is complete by itself: shown without a traceback."""

    exit_code = 1


class InputError(CrossmeshError, ValueError):
    """The user's input cannot work: configuration, files, names."""

    exit_code = 2


class ChoiceError(InputError):
    """A value that is none of those that its key takes.

    Attributes:
        key: dotted name of the key.
        allowed: what crossmesh itself has for it.
        extensible: whether other packages may add to that.
    """

    def __init__(self, message: str, key: str, allowed: tuple[str, ...], *, extensible: bool = False) -> None:
        super().__init__(message)
        self.key = key
        self.allowed = allowed
        self.extensible = extensible


class RejectedError(CrossmeshError):
    """Refused before start: the plan does not fit, or the planned budget is exceeded."""

    exit_code = 3


class BudgetReachedError(CrossmeshError):
    """Live spending reached the budget; what was computed is kept."""

    exit_code = 4


def closest_name(name: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed name most like `name`, or None when nothing is close."""
    matches = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.5)
    return matches[0] if matches else None


def require_choice(key: str, value: str, allowed: Iterable[str]) -> None:
    """Raise `ChoiceError` unless `value` is one of `allowed`; the message names the key and the nearest valid value."""
    options = sorted(allowed)
    if value in options:
        return
    guess = closest_name(value, options)
    hint = f" Did you mean {guess!r}?" if guess else ""
    raise ChoiceError(f"{key}={value!r} is not known. Allowed: {', '.join(options)}.{hint}", key, tuple(options))


def require(condition: bool, key: str, value: object, allowed: str) -> None:
    """Raise `InputError` naming the key, the value and what is allowed, unless `condition` holds."""
    if not condition:
        raise InputError(f"{key}={value!r} is not possible. Allowed: {allowed}.")


@contextmanager
def reading(path: Path, needed: str) -> Iterator[None]:
    """Turn whatever reading the user's file `path` raises into one `InputError`: damage, wrong types, missing keys."""
    try:
        yield
    except CrossmeshError:
        raise
    except Exception as error:  # Each parser has its own exceptions; tokenizers raises `Exception` itself.
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{path} cannot be read ({type(error).__name__}: {reason}). Needed: {needed}.") from error
