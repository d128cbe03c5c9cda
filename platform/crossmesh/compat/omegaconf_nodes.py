"""OmegaConf: nodes of a config in place of their values, and what its errors say."""

import re
from typing import Any

from crossmesh.compat.parts import member

_WRONG_TYPE = re.compile(r"Cannot (merge|convert|assign)|Invalid (value|type) assigned")


def node_of(config: Any, key: Any) -> Any:
    """Return the node of `key` in a config, with its type, also where a missing or interpolated value could not be read."""
    return member("omegaconf", config, "_get_node")(key)


def plain_reason(error: Exception) -> str:
    """Say what OmegaConf finds wrong, in words that do not speak of its own types."""
    text = str(error).splitlines()[0].rstrip(".")
    if "is not Optional" in text:
        return "null is not a value here"
    if "not support deletion" in text:
        return "a key can be set but not taken away"
    return "wrong type" if _WRONG_TYPE.match(text) else text
