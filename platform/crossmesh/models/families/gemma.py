"""What Gemma 3 and Gemma 4 share: a config inside a multimodal one, attention's projections, four norms a layer.

A family's own file adds what sets it apart.
"""

from collections.abc import Iterator, Mapping

from crossmesh.compat.tunix_modules import KEY_NORM, QUERY_NORM
from crossmesh.errors import InputError
from crossmesh.models.architecture import KV_DIMS, O_DIMS, Q_DIMS, Architecture, Json, Weight, gated_mlp


def text_config(config: Json, origin: str) -> tuple[Json, str]:
    """The text decoder's config, and what its weights' names start with: alone, or inside a multimodal model."""
    kind = str(config["model_type"])
    if kind.endswith("_text"):
        return config, "model."
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        raise InputError(f"{origin}: model_type={kind} without a text_config. Give a complete config.json.")
    return text, "model.language_model."


def gemma_projections(architecture: Architecture, index: int) -> dict[str, Weight]:
    """Tunix: q, k, v as [heads, D, H], o as [heads, H, D].

    Tunix fuses K and V, or Q, K and V, into one weight; we build modules of their own (why: `models/jax/layers_jax.py`). A layer where K
    and V share a projection has `k_einsum` only.
    """
    layer, hidden, path = architecture.layers[index], (architecture.hidden,), ("layers", index, "attn")
    hf = f"{architecture.layer_prefix(index)}self_attn"
    q_shape, kv_shape = (layer.heads, layer.head_dim), (layer.kv_heads, layer.head_dim)
    key = ("k_einsum",) if layer.shared_kv else ("kv_einsum", "k")
    return {
        "q": Weight(f"{hf}.q_proj", "weight", (*path, "q_einsum"), "w", q_shape, hidden, (0, 2, 1), Q_DIMS),
        "k": Weight(f"{hf}.k_proj", "weight", (*path, *key), "w", kv_shape, hidden, (0, 2, 1), KV_DIMS),
        "v": Weight(f"{hf}.v_proj", "weight", (*path, "kv_einsum", "v"), "w", kv_shape, hidden, (0, 2, 1), KV_DIMS),
        "o": Weight(f"{hf}.o_proj", "weight", (*path, "attn_vec_einsum"), "w", hidden, q_shape, (1, 2, 0), O_DIMS),
        **gated_mlp(architecture, index),
    }


NORMS = {
    "input_layernorm": "pre_attention_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "pre_ffw_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
"""Norms of the hidden states by their names on both sides."""


def gemma_norms(architecture: Architecture, index: int, norms: Mapping[str, str], heads: tuple[str, ...], dim: str) -> Iterator[Weight]:
    """Norms of layer `index`: `norms` of hidden states, and those of `heads` (`q`, `k`), whose one axis counts `dim`."""
    hf, path = architecture.layer_prefix(index), ("layers", index)
    for name, ours in norms.items():
        yield Weight(f"{hf}{name}", "weight", (*path, ours), "scale", (architecture.hidden,), dims=("norm",))
    ours_of = {"q": QUERY_NORM, "k": KEY_NORM}
    for name in heads:
        head_dim = architecture.layers[index].head_dim
        yield Weight(f"{hf}self_attn.{name}_norm", "weight", (*path, "attn", ours_of[name]), "scale", (head_dim,), dims=(dim,))


def check_tied(architecture: Architecture) -> None:
    """Raise `InputError` where the output projection is not the embedding, as it is in all of Tunix's Gemmas."""
    if not architecture.tied:
        name = architecture.family.replace("gemma", "Gemma ")
        raise InputError(
            f"This {name} has tie_word_embeddings=false, which the JAX backend (Tunix 0.1.7) does not compute. Use backend=torch."
        )
