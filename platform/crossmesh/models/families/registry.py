"""The families of models that crossmesh knows, and a model's architecture from its Hugging Face `config.json`.

Pure JSON to frozen values: neither transformers nor any weights are needed, so drivers and planners can read it too.
"""

import functools
from collections.abc import Mapping
from pathlib import Path

from crossmesh.config.training import FAMILIES
from crossmesh.errors import InputError, reading
from crossmesh.files import read_json
from crossmesh.models.architecture import Architecture, Family, Json
from crossmesh.models.families.config_keys import check_keys

_REFUSED = {
    "gpt_oss": "its published weights are 4-bit (MXFP4), its attention has sinks that no kernel of the JAX backend computes, and vLLM "
    "renders its conversations with openai_harmony, not with the chat template, so that what is trained would not be what is served",
}
"""Families that are asked for, and why they are refused."""


def family_of(architecture: Architecture) -> Family:
    """The family of a model."""
    family: Family = FAMILIES.load(architecture.family)
    return family


@functools.cache
def families() -> Mapping[str, Family]:
    """All families by name, those of other packages last."""
    loaded: dict[str, Family] = {name: FAMILIES.load(name) for name in FAMILIES.names}
    types = [kind for family in loaded.values() for kind in family.model_types]
    if doubled := sorted({kind for kind in types if types.count(kind) > 1}):
        names = " and ".join(name for name, family in loaded.items() if doubled[0] in family.model_types)
        raise InputError(f"The model families {names} both read model_type={doubled[0]!r}. Uninstall the package of one of them.")
    return loaded


def check_backend(architecture: Architecture, backend: str) -> None:
    """Raise `InputError` for what `backend` (`jax` or `torch`) does not compute as transformers does.

    Pure, so that planners and drivers refuse it before a device is taken.
    """
    if backend == "jax":
        family_of(architecture).check_jax(architecture)


def read_architecture(folder: Path) -> Architecture:
    """Read `folder/config.json`.

    Raises `InputError` when there is none, or when the model is of a family, or has a part, that crossmesh does not know.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"{folder} has no config.json, so it is no Hugging Face model folder. Give the folder that holds config.json.")
    with reading(path, "a complete Hugging Face config.json"):
        return parse_architecture(read_json(path), str(path))


def parse_architecture(config: Json, origin: str) -> Architecture:
    """Turn a Hugging Face config into an `Architecture`; `origin` names the config in error messages."""
    kind, by_type = config.get("model_type"), {one: family for family in families().values() for one in family.model_types}
    if why := _REFUSED.get(str(kind)):
        raise InputError(f"{origin}: {kind} models are not trained and served here: {why}. Allowed: {', '.join(sorted(by_type))}.")
    if config.get("quantization_config") or _text_of(config).get("quantization_config"):
        raise InputError(f"{origin}: the weights are quantized (quantization_config). Give an unquantized checkpoint.")
    if kind not in by_type:
        raise InputError(
            f"{origin}: model_type={kind!r} is not a family that crossmesh trains and serves. Allowed: {', '.join(sorted(by_type))}."
        )
    family = by_type[kind]
    elsewhere = frozenset(key for other in families().values() for key in (*other.keys.computed, *other.keys.fixed))
    check_keys(family, config, origin, elsewhere)
    if text := _text_of(config):
        check_keys(family, text, f"{origin}: text_config", elsewhere)
        if bool(text.get("tie_word_embeddings", True)) != bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", True))):
            raise InputError(f"{origin}: tie_word_embeddings is not the same in text_config, and engines do not agree on which one counts.")
    return family.read(config, origin)


def _text_of(config: Json) -> Json:
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else {}
