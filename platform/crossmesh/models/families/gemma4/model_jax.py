"""Tunix's Gemma 4 as the Hugging Face model computes it. Importing this imports Tunix: workers only."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from tunix.models.gemma4 import model as gemma4

from crossmesh.compat.tunix_modules import KEY_NORM, key_norm, query_norm
from crossmesh.hardware.mesh import BATCH_AXES
from crossmesh.models.architecture import Architecture, LayerKind
from crossmesh.models.families.gemma4.experts_jax import Gemma4Experts
from crossmesh.models.jax.attention_jax import attend
from crossmesh.models.jax.layers_jax import (
    DTYPES,
    HiddenStates,
    KeyValue,
    ModelConfig,
    activations,
    as_products,
    look_up,
    rotate,
    run_block,
    set_up,
)
from crossmesh.models.jax.sharding_jax import HEADS, STREAM, constrain

_NORM_EPSILON = 1e-6
"""Written into Tunix's gemma4 `RMSNorm`."""
_PER_LAYER = (BATCH_AXES, None, None, None)
_OTHER_BATCH_AXES = tuple(axis for axis in BATCH_AXES if axis != "fsdp")
_ROWS = (_OTHER_BATCH_AXES, None, None, "fsdp")
"""Where the layers' own inputs [B, T, layers, P] lie, and rows as the divided table gives them."""


class _Attention(gemma4.Attention):
    """Tunix's gemma4 attention on segments. `rope` and `kernel` are set on the instance."""

    def block(self, x: Any, segment_pos: Any, cache: Any, attn_mask: Any, kv_shared_cache: Any = None) -> Any:
        """`attn_mask` holds segment ids [B, T]; `kv_shared_cache` is (keys, values) of an earlier layer where this one uses them."""
        del cache
        sliding = self.attn_type == gemma4.AttentionType.LOCAL_SLIDING
        x = x.astype(self.config.dtype)
        turn = functools.partial(rotate, positions=segment_pos, rope=self.rope)
        query = turn(query_norm(self)(constrain(self.q_einsum(x), *HEADS)))
        key, value = kv_shared_cache or self._keys_and_values(x, turn)
        window = self.config.sliding_window_size if sliding else 0
        mixed = attend(query, key, value, attn_mask, window or 0, self.kernel)
        return None, constrain(self.attn_vec_einsum(mixed), *STREAM), (key, value)

    def _keys_and_values(self, x: Any, turn: Any) -> tuple[Any, Any]:
        if hasattr(self, "k_einsum"):
            key = value = constrain(self.k_einsum(x), *HEADS)
        else:
            key, value = (constrain(projected, *HEADS) for projected in self.kv_einsum(x))
        # Values have a norm without a scale of their own.
        value = value * jax.lax.rsqrt(jnp.mean(jnp.square(value), axis=-1, keepdims=True) + _NORM_EPSILON)
        return turn(key_norm(self)(key)), value


class _Layer(gemma4.DecoderLayer):
    """Tunix's layer. Set on the instance: the layer whose keys and values it uses (`kv_from`), whether others use its own (`shares`)."""

    def block(self, x: Any, segment_pos: Any, cache: Any, attn_mask: Any, per_layer_input: Any = None, kv_shared_cache: Any = None) -> Any:
        """Tunix's, with the residual stream given to the experts' router."""
        _, mixed, made = self.attn(self.pre_attention_norm(x), segment_pos, cache, attn_mask, kv_shared_cache)
        x = x + self.post_attention_norm(mixed)
        change = self.mlp(self.pre_ffw_norm(x))
        if self.config.enable_moe:
            change = self.dense_post_ffw_norm(change) + self.moe_post_ffw_norm(self.moe(x, self.moe_pre_ffw_norm(x)))
        x = x + self.post_ffw_norm(change)
        if per_layer_input is not None:
            gated = jax.nn.gelu(constrain(self.per_layer_input_gate(x), BATCH_AXES, None, None)) * per_layer_input
            x = x + self.post_per_layer_input_norm(constrain(self.per_layer_projection(gated), *STREAM))
        return None, x * self.skip_scale.get_value(), made if self.shares else None


class _Model(HiddenStates, gemma4.Gemma4):
    """Tunix's model up to its hidden states."""

    def __call__(self, tokens: Any, positions: Any, cache: Any, segment_ids: Any) -> Any:
        """`tokens`, `positions` and `segment_ids` are [B, T]; returns hidden states [B, T, D] and no cache."""
        del cache
        x = self.embed(tokens)
        inputs = self._layer_inputs(x, tokens) if self.config.per_layer_input_dim else None
        made: dict[int | None, Any] = {}
        for index, layer in enumerate(self.layers):
            own = None if inputs is None else inputs[:, :, index]
            _, x, made[index] = run_block(layer, x, positions, segment_ids, own, made.get(layer.kv_from))
        return self.final_norm(x), None

    def embed(self, tokens: Any) -> Any:
        """Rows of the table, scaled."""
        rows = look_up(self.embedder, tokens)
        return rows * jnp.sqrt(rows.shape[-1]).astype(rows.dtype)

    def _layer_inputs(self, x: Any, tokens: Any) -> Any:
        """The layers' own inputs [B, T, layers, P]: one part made of the embedded tokens `x` [B, T, D], one from a table."""
        embedder = self.embedder
        made = embedder.per_layer_projection_norm(constrain(embedder.per_layer_model_projection(x), *_PER_LAYER))
        # The table is as large as the layers together: its width stays divided over fsdp, and only the rows that were found travel.
        rows = constrain(embedder.per_layer_input_embedding.get_value()[constrain(tokens, _OTHER_BATCH_AXES, None)], *_ROWS)
        rows = constrain(rows, *_PER_LAYER)
        return (made + rows * jnp.sqrt(rows.shape[-1]).astype(rows.dtype)) * jnp.asarray(2**-0.5, rows.dtype)


def make_gemma4(architecture: Architecture, settings: ModelConfig) -> Any:
    """Tunix's Gemma 4 with K and V apart, experts and shared keys and values as transformers has them, hidden states as output."""
    config = gemma4_config(architecture, DTYPES[settings.dtype])
    model = _Model(config, rngs=nnx.Rngs(0))
    # Tunix guesses whose keys and values a layer uses: of the last two that have their own. The architecture knows.
    sources = {layer.kv_from for layer in architecture.layers}
    for index, (layer, block) in enumerate(zip(architecture.layers, model.layers, strict=True)):
        block.kv_from, block.shares = layer.kv_from, index in sources
        if layer.kv_from is not None:
            for name in {"k_einsum", "kv_einsum", KEY_NORM} & {*vars(block.attn)}:
                delattr(block.attn, name)
        elif not layer.shared_kv:
            block.attn.kv_einsum = KeyValue(functools.partial(_projection, config, layer))
        if layer.ffn:
            block.mlp = gemma4.FeedForward(config, hidden_dim=layer.ffn, rngs=nnx.Rngs(0))
        if architecture.experts:
            block.moe = Gemma4Experts(architecture.experts, architecture.hidden, _NORM_EPSILON, DTYPES[settings.dtype])
            block.moe.makes_whole = settings.remat == "none"
        set_up(block, _Layer, _Attention, (gemma4.Einsum, nnx.Linear), settings)
        block.attn.rope = layer.rope
    as_products(model.embedder, (gemma4.Einsum,), settings, inside_remat=False)
    return model


def _projection(config: Any, layer: LayerKind) -> Any:
    """Keys, or values, of `layer`."""
    return gemma4.Einsum(
        einsum_str="BSD,KDH->BSKH",
        shape=(layer.kv_heads, config.embed_dim, layer.head_dim),
        rngs=nnx.Rngs(0),
        sharding=config.shd_config.q_weight_ndh,
        dtype=config.dtype,
        param_dtype=config.param_dtype,
    )


def gemma4_config(architecture: Architecture, dtype: Any) -> Any:
    """Tunix's configuration of a Gemma 4."""
    sliding = next((layer for layer in architecture.layers if layer.attention == "sliding"), architecture.layers[0])
    whole = next((layer for layer in architecture.layers if layer.attention == "global"), sliding)
    experts = architecture.experts
    return gemma4.ModelConfig(
        num_layers=len(architecture.layers),
        num_embed=architecture.vocab,
        embed_dim=architecture.hidden,
        hidden_dim=architecture.ffn,
        num_heads=architecture.heads,
        head_dim=sliding.head_dim,
        num_kv_heads=sliding.kv_heads,
        sliding_window_size=sliding.window or None,
        per_layer_input_dim=architecture.per_layer_input,
        num_global_kv_heads=whole.kv_heads,
        global_key_size=whole.head_dim,
        k_eq_v_global=whole.shared_kv,
        attention_pattern=tuple(
            gemma4.AttentionType.GLOBAL if layer.attention == "global" else gemma4.AttentionType.LOCAL_SLIDING
            for layer in architecture.layers
        ),
        global_rope_proportion=whole.rope.fraction,
        local_rope_proportion=sliding.rope.fraction,
        global_base_frequency=whole.rope.theta,
        local_base_frequency=sliding.rope.theta,
        final_logit_softcap=None,  # `logits_of` caps them.
        enable_moe=experts is not None,
        num_experts=experts.count if experts else None,
        num_experts_per_tok=experts.per_token if experts else None,
        expert_dim=experts.ffn if experts else None,
        param_dtype=dtype,
        dtype=dtype,
        shd_config=replace(
            activations(gemma4.ShardingConfig.get_default_sharding()),
            per_layer_model_projection=("fsdp", None, None),
            per_layer_input_gate=("fsdp", None),
            per_layer_projection=(None, "fsdp"),
            per_layer_input_embedding=("tp", None, "fsdp"),
        ),
    )
