"""A command line before Hydra reads it: flags that are not Hydra's are refused by name, values that its grammar cannot read are quoted.

Hydra's grammar takes ASCII letters, digits and a few signs unquoted, so a path with an accent, a blank or `#` in it would be refused.
"""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from crossmesh.compat.hydra_core import flags
from crossmesh.errors import InputError

_UNPICKLES = "--experimental-rerun"
_STRUCTURE = frozenset(",=[]{}()'\"\\`~")
"""Signs that mean something to Hydra: a value that has one is never quoted without being asked."""
_PLAIN = re.compile(r"[A-Za-z0-9_\-/+.$%*@?|: ]")
"""What Hydra's grammar takes unquoted inside a value."""


def hydra_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments as Hydra can read them. Raises `InputError` for flags that it does not have and values that it cannot read."""
    taking = flags()
    found: list[str] = []
    value_of_flag = False
    for argument in arguments:
        flag = argument.partition("=")[0]
        if value_of_flag and "=" not in argument:
            found.append(argument)
        elif argument.startswith("-"):
            _check_flag(argument, flag, taking)
            found.append(argument)
        else:
            found.append(_quoted(argument))
        value_of_flag = argument in taking and taking[argument]
    return found


def where_given() -> tuple[str, ...]:
    """The arguments of this job that say where its runs are kept."""
    return arguments_with_prefix("storage.root=", "tracking.uri=", "tracking.experiment=", "tracking.trackers=")


def arguments_with_prefix(*prefixes: str) -> tuple[str, ...]:
    """The arguments of this job that begin so."""
    return tuple(one for one in sys.argv[1:] if one.startswith(prefixes))


def unreadable(argument: str) -> InputError:
    """Say why Hydra cannot read an override, and how it is written."""
    key, separator, value = argument.partition("=")
    if not separator:
        return InputError(f"Cannot read {argument!r}. Allowed: key=value, or group=file with the name of a file under conf/.")
    if value.startswith("~"):
        return InputError(f"Cannot read {argument!r}: ~ is not expanded. Write the whole path.")
    strange = [sign for sign in value if not _PLAIN.match(sign)]
    odd = next((sign for sign in strange if sign not in ",[]{}"), "")
    why = f": {odd!r} in a value needs quotes that the shell leaves alone" if odd else ""
    example = _shell(f"{key}='{value}'") if not set(value) & set("'\"\\[]{}") else "\"name='a=b'\", \"list=['a=b',c]\""
    return InputError(f"Cannot read {argument!r}{why}. Allowed: key=value. Write: {example}")


def value_text(value: Any) -> str:
    """Write a value as Hydra's grammar reads it back: numbers with all their digits, texts in quotes where they need any."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(value_text, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{value_text(key)}:{value_text(item)}' for key, item in value.items())}}}"
    if not isinstance(value, str):
        return repr(value)
    try:
        if OverridesParser.create().parse_override(f"key={value}").value() == value:
            return value
    except HydraException:
        pass
    doubled = re.sub(r"(\\*)'", lambda found: f"{found[1] * 2}\\'", value)  # Backslashes count before a quote only.
    closed = re.sub(r"(\\+)$", lambda found: found[1] * 2, doubled)
    return f"'{closed}'"


def command(program: str, arguments: Sequence[str]) -> str:
    """Return a command line as a shell takes it."""
    plain = re.compile(r"[\w@%+=:,./\[\]-]+")
    return " ".join([program, *(argument if plain.fullmatch(argument) else shlex.quote(argument) for argument in arguments)])


def _check_flag(argument: str, flag: str, taking: dict[str, bool]) -> None:
    if flag == _UNPICKLES:
        raise InputError(f"{_UNPICKLES} is refused: Hydra would unpickle its file, which can run any code. Give the overrides themselves.")
    if flag in taking:
        return
    name = flag.lstrip("-").replace("-", "_")
    value = argument.partition("=")[2] or "VALUE"
    ours = "-m (sweep), --help, --help-all, --cfg job"
    raise InputError(f"{argument}: the flag {flag} does not exist. Keys are set without dashes: {name}={value}. Flags: {ours}.")


def _quoted(argument: str) -> str:
    """Quote a value that Hydra's grammar cannot read and that can mean one thing only."""
    try:
        OverridesParser.create().parse_override(argument)
    except HydraException:
        key, separator, value = argument.partition("=")
        if not separator or not value or set(value) & _STRUCTURE:
            raise unreadable(argument) from None
        return f"{key}='{value}'"
    return argument


def _shell(argument: str) -> str:
    """Quote an argument for a shell, with double quotes where these are enough."""
    return shlex.quote(argument) if re.search(r'["$`\\!]', argument) else f'"{argument}"'
