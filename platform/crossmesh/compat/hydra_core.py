"""Hydra: its flags, the points of its sweeps, its store of configs, and what its errors say."""

import re
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from crossmesh.compat.parts import member, part

_AMBIGUOUS = re.compile(r"Ambiguous value for argument '(.+)'")
_UNKNOWN_KEY = re.compile(r"Could not override '([^']+)'")
_MISSING_FILE = re.compile(r"Could not find '([^']+)/([^'/]*)'")
_OPTIONS = re.compile(r"Available options in '[^']*':\n((?:\t.+\n?)+)")


def flags() -> dict[str, bool]:
    """Return the flags of Hydra's command line, and whether each takes a value."""
    parser = part("hydra-core", "hydra._internal.utils", "get_args_parser")()
    actions = member("hydra-core", parser, "_actions")
    return {name: action.nargs != 0 for action in actions for name in action.option_strings}


def launcher_config() -> Any:
    """Return the config of Hydra's own launcher: a name on the command line, nothing is launched by it."""
    return part("hydra-core", "hydra._internal.core_plugins.basic_launcher", "BasicLauncherConf")


def split_points(loader: Any, arguments: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each point of a sweep, as Hydra's own sweeper splits them."""
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(arguments))
    sweeper = part("hydra-core", "hydra._internal.core_plugins.basic_sweeper", "BasicSweeper")
    points: list[list[str]] = sweeper.split_arguments(parsed, None)[0]
    return points


def share_store(store: Any) -> None:
    """Keep Hydra from copying its whole `ConfigStore` for each group that it lists, which takes `--help` seconds.

    Nobody changes it, and `load` gives copies. Where Hydra copies nothing any more, this has no effect.
    """
    vars(store)["__deepcopy__"] = lambda _memo: store


def is_group_value_error(error: ValueError) -> bool:
    """Whether Hydra refused a `group=` whose value is not a text."""
    return "Config group override" in str(error)


def ambiguous_argument(text: str) -> str | None:
    """The argument that Hydra finds to be a sweep outside a sweep."""
    return match[1] if (match := _AMBIGUOUS.search(text)) else None


def unknown_override(text: str) -> str | None:
    """The key of an override that no config has."""
    return match[1] if (match := _UNKNOWN_KEY.search(text)) else None


def missing_file(text: str) -> tuple[str, str] | None:
    """The group and the name of a config file that does not exist."""
    return (match[1], match[2]) if (match := _MISSING_FILE.search(text)) else None


def listed_options(text: str) -> list[str]:
    """The files of a group as Hydra lists them beside one that does not exist."""
    return sorted(line.strip() for line in match[1].splitlines()) if (match := _OPTIONS.search(text)) else []
