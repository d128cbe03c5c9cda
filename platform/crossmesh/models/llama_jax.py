"""Tunix's Llama 3 as the Hugging Face model computes it. Importing this imports Tunix: workers only."""

import functools
from dataclasses import replace
from typing import Any

import jax
from flax import nnx
from tunix.models.llama3 import model as llama3

from crossmesh.errors import InputError
from crossmesh.models.architecture import Architecture
from crossmesh.models.attention_jax import attend
from crossmesh.models.layers_jax import DTYPES, Settings, activations, look_up, run_layer, set_up
from crossmesh.models.sharding_jax import HEADS, STREAM, constrain


class _Attention(llama3.Attention):
    """Tunix's llama3 attention on segments, rotating with the model's theta.

    Tunix 0.1.7 calls `apply_rope` without `config.rope_theta`, so that every Llama is computed with the default of 1e6. `theta` and
    `kernel` are set on the instance.
    """

    def block(self, x: Any, segment_pos: Any, cache: Any, attn_mask: Any) -> Any:
        """`attn_mask` holds segment ids [B, T]."""
        del cache
        query, key, value = (constrain(project(x), *HEADS) for project in (self.q_proj, self.k_proj, self.v_proj))
        rotate = functools.partial(llama3.apply_rope, positions=segment_pos, head_dim=self.head_dim, rope_theta=self.theta)
        mixed = attend(rotate(query) * self.scale, rotate(key), value, attn_mask, 0, self.kernel)
        return None, constrain(self.o_proj(mixed), *STREAM)


class _Layer(llama3.DecoderLayer):
    """Tunix's layer with `remat`, set on the instance."""

    def __call__(self, x: Any, segment_pos: Any, cache: Any, attn_mask: Any) -> Any:
        del cache
        return None, run_layer(self, x, segment_pos, attn_mask)


class _Hidden(llama3.Embedder):
    """Gives back the hidden states where Tunix would make logits: the loss makes them only where it needs them."""

    def encode(self, x: Any) -> Any:
        return look_up(self, x)

    def decode(self, x: Any) -> Any:
        return x


class _HiddenUntied(llama3.Einsum):
    """As `_Hidden`, for a model whose output projection is a weight of its own."""

    def __call__(self, x: Any) -> Any:
        return x


def llama_config(architecture: Architecture) -> Any:
    """Tunix's configuration of a Llama, everything that is not the architecture's as Tunix has it."""
    layer = architecture.layers[0]
    return llama3.ModelConfig(
        num_layers=len(architecture.layers),
        vocab_size=architecture.vocab,
        embed_dim=architecture.hidden,
        hidden_dim=architecture.ffn,
        num_heads=layer.heads,
        head_dim=layer.head_dim,
        num_kv_heads=layer.kv_heads,
        rope_theta=int(layer.rope.theta),
        norm_eps=architecture.norm_epsilon,
        weight_tying=architecture.tied,
    )


def make_llama(architecture: Architecture, settings: Settings) -> Any:
    """Tunix's Llama3 with theta, hidden states as output. Its layers take the precision of their weights."""
    layer = architecture.layers[0]
    if layer.rope.kind != "default" or layer.rope.fraction != 1.0:
        raise InputError(
            f"This Llama uses rope_type={layer.rope.kind!r}, which the JAX backend (Tunix 0.1.7) does not compute. "
            "Allowed: default. Use backend=torch for this model."
        )
    config = replace(llama_config(architecture), shd_config=activations(llama3.ShardingConfig.get_default_sharding()))
    model = llama3.Llama3(config, rngs=nnx.Rngs(0))
    for block in model.layers:
        set_up(block, _Layer, _Attention, (llama3.Einsum, nnx.Linear), settings)
        block.attn.theta = layer.rope.theta
    model.embedder.__class__ = _Hidden
    if not architecture.tied:
        model.lm_head.__class__ = _HiddenUntied
    nnx.update(model, jax.tree.map(lambda array: array.astype(DTYPES[settings.dtype]), nnx.state(model)))
    return model
