"""The frequencies of rotary position embeddings, of every kind, as transformers computes them (`modeling_rope_utils.py`).

Pure numpy, float32 where transformers is, so that the JAX backend rotates by the very same numbers.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from crossmesh.errors import InputError
from crossmesh.models.architecture import Json, Rope

_SETTINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ()),
    "proportional": ((), ("factor",)),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
    "yarn": (
        ("factor", "original_max_position_embeddings"),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
}
"""By kind, the settings it needs and those it may have."""
_EVERY = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
_IGNORED = {"original_max_position_embeddings", "finetuned"}
"""Settings that transformers does not compute with where the kind has no use for them."""


def read_rope(parameters: Json, origin: str, max_positions: int) -> Rope:
    """Read a layer's rotary embedding in the spelling of transformers 4 or 5.

    Raises `InputError` for a kind or a setting that is not computed, and for a value that is not possible.
    """
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in _SETTINGS:
        raise InputError(f"{origin}: rope_type={kind!r} is not computed by crossmesh. Allowed: {', '.join(_SETTINGS)}.")
    needed, possible = _SETTINGS[kind]
    given = {key: value for key, value in parameters.items() if value is not None}
    # The configuration's own limit stands in where yarn and llama3 do not say what they were trained on.
    settings = {"original_max_position_embeddings": max_positions, **given}
    for key in given.keys() - {*_EVERY, *needed, *possible} - _IGNORED:
        if kind == "default" and key == "factor" and given[key] == 1:
            continue
        raise InputError(
            f"{origin}: {key}={given[key]!r} is not a setting of rope_type={kind!r}. Allowed: {', '.join((*needed, *possible)) or 'none'}."
        )
    if missing := [key for key in needed if key not in settings]:
        raise InputError(f"{origin}: rope_type={kind!r} needs {', '.join(missing)}. Give a complete config.json.")
    numbers = {key: settings[key] for key in ("rope_theta", "partial_rotary_factor", *needed, *possible) if key in settings}
    for key, value in numbers.items():
        if key != "truncate" and (isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0):
            raise InputError(f"{origin}: {key}={value!r} of the rotary embedding is not possible. Allowed: a positive number.")
    return Rope(
        theta=float(settings["rope_theta"]),
        kind=kind,
        fraction=float(settings.get("partial_rotary_factor", 1.0)),
        factor=float(settings.get("factor", 1.0)) if kind != "default" else 1.0,
        settings=tuple((key, float(settings[key])) for key in (*needed, *possible) if key in settings and key != "factor"),
    )


def whole_head(rope: Rope, origin: str) -> Rope:
    """`rope`; raises `InputError` where a part of a head is rotated in a way that transformers does not compute."""
    if rope.fraction != 1 and rope.kind != "proportional":
        raise InputError(
            f"{origin}: partial_rotary_factor={rope.fraction} with rope_type={rope.kind!r} is not computed. "
            "Allowed: 1, or rope_type=proportional."
        )
    return rope


def frequencies(rope: Rope, head_dim: int) -> tuple[npt.NDArray[np.float32], float]:
    """Inverse frequencies [rotated / 2] of a head of `head_dim`, and what sines and cosines are multiplied by."""
    dim = int(head_dim * rope.fraction)
    if rope.kind == "proportional":
        angles = int(rope.fraction * head_dim // 2)
        inverse = np.zeros(head_dim // 2, np.float32)
        inverse[:angles] = _plain(rope.theta, 2 * angles, head_dim)
        return (inverse / np.float32(rope.factor)).astype(np.float32), 1.0
    inverse = _plain(rope.theta, dim, dim)
    if rope.kind == "linear":
        return (inverse / np.float32(rope.factor)).astype(np.float32), 1.0
    if rope.kind == "llama3":
        return _llama3(inverse, rope.factor, dict(rope.settings)), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, dim, dict(rope.settings))
    return inverse, 1.0


def _plain(theta: float, count: int, dim: int) -> npt.NDArray[np.float32]:
    powers = np.arange(0, count, 2, dtype=np.float32) / np.float32(dim)
    return (np.float32(1) / np.float32(theta) ** powers).astype(np.float32)


def _llama3(inverse: npt.NDArray[np.float32], factor: float, settings: dict[str, Any]) -> npt.NDArray[np.float32]:
    low, high, trained = (settings[key] for key in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
    lengths = 2 * math.pi / inverse
    smooth = (trained / lengths - low) / (high - low)
    scaled = np.where(lengths > trained / low, inverse / factor, inverse)
    between = (lengths >= trained / high) & (lengths <= trained / low)
    return np.where(between, (1 - smooth) * scaled / factor + smooth * scaled, scaled).astype(np.float32)


def _yarn(rope: Rope, dim: int, settings: dict[str, Any]) -> tuple[npt.NDArray[np.float32], float]:
    """https://arxiv.org/abs/2309.00071."""

    def share(scale: float, mscale: float = 1.0) -> float:
        return 1.0 if scale <= 1 else 0.1 * mscale * math.log(scale) + 1.0

    def bound(rotations: float) -> float:
        trained = settings["original_max_position_embeddings"]
        return (dim * math.log(trained / (rotations * 2 * math.pi))) / (2 * math.log(rope.theta))

    scaling = settings.get("attention_factor")
    if scaling is None:
        mscale, whole = settings.get("mscale"), settings.get("mscale_all_dim")
        scaling = share(rope.factor, mscale) / share(rope.factor, whole) if mscale and whole else share(rope.factor)
    low, high = bound(settings.get("beta_fast", 32)), bound(settings.get("beta_slow", 1))
    if settings.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2, dtype=np.float32) - low) / ((high - low) or 0.001), 0, 1)
    inverse = _plain(rope.theta, dim, dim)
    return (inverse / rope.factor * ramp + inverse * (1 - ramp)).astype(np.float32), float(scaling)
