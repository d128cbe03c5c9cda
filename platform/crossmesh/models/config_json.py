"""Values of a Hugging Face `config.json`, checked as they are read; messages name the file and the key."""

from collections.abc import Sequence

from crossmesh.errors import InputError
from crossmesh.models.architecture import Json, Rope


def read_rope(parameters: Json) -> Rope:
    """Read a layer's rotary embedding in the spelling of transformers 4 or 5."""
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    return Rope(
        theta=float(parameters["rope_theta"]),
        kind=kind,
        fraction=float(parameters.get("partial_rotary_factor", 1.0)),
        factor=float(parameters.get("factor", 1.0)),
    )


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


def refuse(config: Json, keys: tuple[str, ...], origin: str, allow: object = None) -> None:
    """Raise `InputError` when one of `keys` is set to anything but nothing or `allow`."""
    for key in keys:
        value = config.get(key)
        if value and value != allow:
            allowed = f"absent, false, 0 or {allow}" if allow else "absent, false or 0"
            raise InputError(f"{origin}: {key}={value!r} is not supported by crossmesh. Allowed: {allowed}.")
