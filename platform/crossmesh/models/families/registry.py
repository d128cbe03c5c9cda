"""The families of models that crossmesh knows, and a model's architecture from its Hugging Face `config.json`.

Pure JSON to frozen values: neither transformers nor any weights are needed, so drivers and planners can read it too.
"""

from collections.abc import Mapping
from pathlib import Path

from crossmesh.errors import InputError, reading
from crossmesh.files import read_json
from crossmesh.models.architecture import Architecture, Family, Json
from crossmesh.models.families.config_keys import check_keys
from crossmesh.models.families.gemma2 import family as gemma2
from crossmesh.models.families.gemma3 import family as gemma3
from crossmesh.models.families.gemma4 import family as gemma4
from crossmesh.models.families.llama import family as llama
from crossmesh.models.families.mistral import family as mistral
from crossmesh.models.families.qwen2 import family as qwen2
from crossmesh.models.families.qwen3 import family as qwen3
from crossmesh.models.families.qwen3_moe import family as qwen3_moe

_FAMILIES = (llama.FAMILY, mistral.FAMILY, gemma2.FAMILY, gemma3.FAMILY, gemma4.FAMILY, qwen2.FAMILY, qwen3.FAMILY, qwen3_moe.FAMILY)
FAMILIES = {family.name: family for family in _FAMILIES}
_BY_TYPE = {kind: family for family in FAMILIES.values() for kind in family.model_types}
_REFUSED = {
    "gpt_oss": "its published weights are 4-bit (MXFP4), its attention has sinks that no kernel of the JAX backend computes, and vLLM "
    "renders its conversations with openai_harmony, not with the chat template, so that what is trained would not be what is served",
}
"""Families that are asked for, and why they are refused."""


def family_of(architecture: Architecture) -> Family:
    """The family of a model."""
    return FAMILIES[architecture.family]


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
    kind = config.get("model_type")
    if why := _REFUSED.get(str(kind)):
        raise InputError(f"{origin}: {kind} models are not trained and served here: {why}. Allowed: {', '.join(sorted(_BY_TYPE))}.")
    if config.get("quantization_config") or _text_of(config).get("quantization_config"):
        raise InputError(f"{origin}: the weights are quantized (quantization_config). Give an unquantized checkpoint.")
    if kind not in _BY_TYPE:
        raise InputError(
            f"{origin}: model_type={kind!r} is not a family that crossmesh trains and serves. Allowed: {', '.join(sorted(_BY_TYPE))}."
        )
    family = _BY_TYPE[kind]
    check_keys(family.name, config, origin)
    if text := _text_of(config):
        check_keys(family.name, text, f"{origin}: text_config")
        if bool(text.get("tie_word_embeddings", True)) != bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", True))):
            raise InputError(f"{origin}: tie_word_embeddings is not the same in text_config, and engines do not agree on which one counts.")
    return family.read(config, origin)


def _text_of(config: Json) -> Json:
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else {}
