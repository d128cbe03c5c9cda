"""Values of a Hugging Face `config.json`, checked as they are read; messages name the file and the key."""

from collections.abc import Sequence

from crossmesh.errors import InputError
from crossmesh.models.architecture import Json


def read_size(config: Json, key: str, origin: str) -> int:
    """Read a size. Raises `InputError` when it is missing or no positive whole number."""
    value = config.get(key)
    if not isinstance(value, int) or value <= 0:
        raise InputError(f"{origin}: {key}={value!r} is not possible. Allowed: a positive whole number.")
    return value


def read_layer_types(config: Json, count: int, default: Sequence[str], origin: str) -> tuple[str, ...]:
    """Read the attention of each layer: `full_attention` or `sliding_attention`; `default` where the config does not say.

    Raises `InputError` for another kind, or when there are not `count` of them.
    """
    kinds = tuple(config.get("layer_types") or default)
    if len(kinds) != count:
        raise InputError(f"{origin}: layer_types names {len(kinds)} layers, num_hidden_layers says {count}. They must be equal.")
    for index, kind in enumerate(kinds):
        if kind not in ("full_attention", "sliding_attention"):
            raise InputError(f"{origin}: layer_types[{index}]={kind!r} is not known. Allowed: full_attention, sliding_attention.")
    return kinds
