"""What Tunix's Llama 3, Qwen 2 and Qwen 3 share when they compute as the Hugging Face models do. Imports Tunix: workers only.

Tunix 0.1.7's llama3 and qwen3 call `apply_rope` without the config's theta, so that every such model is computed with the default of 1e6;
none of the three knows another kind of rotation, or a window. Both are said to the attention here.
"""

from typing import Any

from flax import nnx

from crossmesh.models.architecture import Architecture, Rope
from crossmesh.models.jax.attention_jax import attend
from crossmesh.models.jax.layers_jax import DTYPES, ModelConfig, activations, rotate, set_up
from crossmesh.models.jax.sharding_jax import HEADS, STREAM, constrain


class DenseAttention(nnx.Module):
    """Mixed into Tunix's attention: on segments. `rope`, `window` and `kernel` are set on the instance."""

    q_proj: Any
    k_proj: Any
    v_proj: Any
    o_proj: Any
    head_dim: int
    scale: float
    rope: Rope
    window: int
    kernel: str

    def project(self, x: Any) -> tuple[Any, Any, Any]:
        """Queries, keys and values [B, T, N, H] before rotation."""
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)

    def block(self, x: Any, segment_pos: Any, cache: Any, attn_mask: Any, segment_ids: Any = None) -> Any:
        """`attn_mask` holds segment ids [B, T]."""
        del cache, segment_ids
        query, key, value = (constrain(projected, *HEADS) for projected in self.project(x))
        query, key = rotate(query, segment_pos, self.rope), rotate(key, segment_pos, self.rope)
        mixed = attend(query * self.scale, key, value, attn_mask, self.window, self.kernel)
        return None, constrain(self.o_proj(mixed), *STREAM)


def dense_sizes(architecture: Architecture) -> dict[str, Any]:
    """What the configurations of all three say of a model, by Tunix's names."""
    layer = architecture.layers[0]
    return {
        "num_layers": len(architecture.layers),
        "vocab_size": architecture.vocab,
        "embed_dim": architecture.hidden,
        "hidden_dim": architecture.ffn,
        "num_heads": layer.heads,
        "head_dim": layer.head_dim,
        "num_kv_heads": layer.kv_heads,
        "rope_theta": int(layer.rope.theta),
        "norm_eps": architecture.norm_epsilon,
    }


def qwen_config(tunix: Any, architecture: Architecture, settings: ModelConfig) -> Any:
    """The configuration of a Qwen; `tunix` is Tunix's module of its generation."""
    dtype = DTYPES[settings.dtype]
    return tunix.ModelConfig(
        **dense_sizes(architecture),
        use_tied_embedding=architecture.tied,
        shd_config=activations(tunix.ShardingConfig.get_default_sharding()),
        dtype=dtype,
        param_dtype=dtype,
    )


def set_up_dense(
    model: Any,
    architecture: Architecture,
    settings: ModelConfig,
    attention: type[DenseAttention],
    einsum: type,
    layer_kind: type | None = None,
) -> Any:
    """Give the layers of `model`, made by Tunix, `attention` and projections of type `einsum`; returns the model.

    Layers stay what they are, unless a `layer_kind` is given.
    """
    for layer, block in zip(architecture.layers, model.layers, strict=True):
        set_up(block, layer_kind or type(block), attention, (einsum, nnx.Linear), settings)
        block.attn.rope, block.attn.window = layer.rope, layer.window
    return model
