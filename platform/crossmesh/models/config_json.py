"""Values of a Hugging Face `config.json`, checked as they are read; messages name the file and the key."""

from crossmesh.errors import InputError
from crossmesh.models.architecture import Json, Rope


def read_rope(parameters: Json) -> Rope:
    """Read a layer's rotary embedding in the spelling of transformers 4 or 5."""
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    return Rope(theta=float(parameters["rope_theta"]), kind=kind, fraction=float(parameters.get("partial_rotary_factor", 1.0)))


def read_size(config: Json, key: str, origin: str) -> int:
    """Read a size. Raises `InputError` when it is missing or no positive whole number."""
    value = config.get(key)
    if not isinstance(value, int) or value <= 0:
        raise InputError(f"{origin}: {key}={value!r} is not possible. Allowed: a positive whole number.")
    return value


def refuse(config: Json, keys: tuple[str, ...], origin: str, allow: object = None) -> None:
    """Raise `InputError` when one of `keys` is set to anything but nothing or `allow`."""
    for key in keys:
        value = config.get(key)
        if value and value != allow:
            raise InputError(f"{origin}: {key}={value!r} is not supported by crossmesh. Allowed: absent, false or 0.")
