"""Tunix's Llama 3 and Gemma 4 built from an architecture: our attention, remat and 4-bit weights put into them in place.

This is the one place that works around what Tunix 0.1.7 does differently from the Hugging Face model; every such point says so. Models
are made to give back hidden states: logits are the loss head's. Importing this module imports Tunix, which changes flax's global state:
workers only.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from tunix.models.gemma4 import model as gemma4
from tunix.models.llama3 import model as llama3

from crossmesh.errors import InputError
from crossmesh.hardware.mesh import BATCH_AXES
from crossmesh.models.attention_jax import Gemma4Attention, LlamaAttention
from crossmesh.models.families import Architecture
from crossmesh.models.nf4_jax import Nf4, dense
from crossmesh.models.sharding_jax import STREAM, constrain, context_mesh, gathered

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
_GEMMA4_NORM_EPSILON = 1e-6
"""Written into Tunix's gemma4 `RMSNorm`."""


@dataclass(frozen=True)
class Settings:
    """How a model computes what it computes."""

    dtype: str = "float32"
    remat: str = "none"
    """`none`, `layer` or `dots`."""
    attention: str = "plain"
    """`plain` or `splash`."""
    quantization: str = "none"
    """`none` or `nf4`."""


def make_model(architecture: Architecture, settings: Settings) -> Any:
    """Tunix's model of `architecture`. Call it under `nnx.eval_shape`, or it draws weights.

    Raises `InputError` for what Tunix does not compute as the Hugging Face model does.
    """
    return _FAMILIES[architecture.family](architecture, settings)


def _run(layer: Any, x: Any, positions: Any, segment_ids: Any) -> Any:
    """The output of a decoder layer, keeping for the backward pass what the layer's remat says.

    The layer is taken apart and put together again inside the checkpointed function, because its modules change while they run.
    """
    x = constrain(x, *STREAM)
    if layer.remat == "none":
        return layer.block(x, positions, None, segment_ids)[1]
    graph, state = nnx.split(layer)

    def compute(state: Any, x: Any, positions: Any, segment_ids: Any) -> Any:
        return nnx.merge(graph, _whole(state)).block(x, positions, None, segment_ids)[1]

    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if layer.remat == "dots" else None
    return jax.checkpoint(compute, policy=policy)(state, x, positions, segment_ids)


def _multiply(module: Any, x: Any) -> Any:
    """The product of a projection that is stored in parts or in 4 bits, where its layer has not made it whole already.

    What is made whole here is made again in the backward pass, never kept; the product itself is not needed there.
    """
    multiply = type(module).__bases__[0].__call__
    mesh = context_mesh()
    if not module.makes_whole or (not module.quantized and (mesh.size <= 1 or mesh.shape["fsdp"] == 1)):
        return multiply(module, x)
    graph, state = nnx.split(module)
    return jax.checkpoint(lambda state, x: multiply(nnx.merge(graph, _whole(state)), x))(state, x)


def _whole(state: Any) -> Any:
    """Weights gathered over fsdp, then unpacked."""

    def one(variable: Any) -> Any:
        axes = variable.get_metadata().get("out_sharding")
        if axes is None:
            return variable
        value = jax.tree.map(lambda array: gathered(array, axes), variable.get_value())
        return variable.replace(dense(value) if isinstance(value, Nf4) else value)

    return nnx.from_flat_state([(path, one(variable)) for path, variable in state.flat_state()])


class _Gemma4Product(gemma4.Einsum):
    """Tunix's projection with `makes_whole` and `quantized`, set on the instance."""

    def __call__(self, x: Any) -> Any:
        return _multiply(self, x)


class _LlamaProduct(llama3.Einsum):
    """As `_Gemma4Product`."""

    def __call__(self, x: Any) -> Any:
        return _multiply(self, x)


class _LinearProduct(nnx.Linear):
    """As `_Gemma4Product`, for the linear layers of both families."""

    def __call__(self, x: Any) -> Any:
        return _multiply(self, x)


_PRODUCTS = {kind.__bases__[0]: kind for kind in (_Gemma4Product, _LlamaProduct, _LinearProduct)}


class _LlamaLayer(llama3.DecoderLayer):
    """Tunix's layer with `remat`, set on the instance."""

    def __call__(self, x: Any, segment_pos: Any, cache: Any, attn_mask: Any) -> Any:
        del cache
        return None, _run(self, x, segment_pos, attn_mask)


class _Gemma4Layer(gemma4.DecoderLayer):
    """As `_LlamaLayer`."""

    def __call__(
        self, x: Any, segment_pos: Any, cache: Any, attn_mask: Any, per_layer_input: Any = None, kv_shared_cache: Any = None
    ) -> Any:
        del cache, per_layer_input, kv_shared_cache
        return None, _run(self, x, segment_pos, attn_mask), None


class _KeyValue(nnx.Module):
    """Two projections in place of Tunix's fused `kv_einsum` [2, heads, D, H].

    On the fused weight Qwix makes ONE A [D, rank] for K and V together, so K and V would read the same rank-r projection of the input:
    another, smaller model than PEFT's, where k_proj and v_proj each have their own A. Two modules give exactly PEFT's parameters.
    """

    def __init__(self, config: Any, kv_heads: int, head_dim: int) -> None:
        self.k, self.v = (
            gemma4.Einsum(
                einsum_str="BSD,KDH->BSKH",
                shape=(kv_heads, config.embed_dim, head_dim),
                rngs=nnx.Rngs(0),
                sharding=config.shd_config.q_weight_ndh,
                dtype=config.dtype,
                param_dtype=config.param_dtype,
            )
            for _ in range(2)
        )

    def __call__(self, x: Any) -> tuple[Any, Any]:
        return self.k(x), self.v(x)


def _look_up(embedder: Any, tokens: Any) -> Any:
    """Rows of the table, which is whole over fsdp while they are taken."""
    table = embedder.input_embedding
    return gathered(table.get_value(), table.get_metadata()["out_sharding"])[tokens]


class _LlamaHidden(llama3.Embedder):
    """Gives back the hidden states where Tunix would make logits: the loss makes them only where it needs them."""

    def encode(self, x: Any) -> Any:
        return _look_up(self, x)

    def decode(self, x: Any) -> Any:
        return x


class _LlamaHiddenUntied(llama3.Einsum):
    """As `_LlamaHidden`, for a model whose output projection is a weight of its own."""

    def __call__(self, x: Any) -> Any:
        return x


class _Gemma4Hidden(gemma4.Embedder):
    """As `_LlamaHidden`."""

    def encode(self, x: Any) -> Any:
        rows = _look_up(self, x)
        return rows * jnp.sqrt(rows.shape[-1]).astype(rows.dtype)

    def decode(self, x: Any) -> Any:
        return x


def _activations(sharding: Any) -> Any:
    """Tunix's sharding with the batch over all axes whose ranks see other sequences: Tunix knows fsdp only."""
    names = ("act_btd", "act_btf", "act_btnh")
    return replace(sharding, **{name: (BATCH_AXES, *getattr(sharding, name)[1:]) for name in names})


def _set_up(layer: Any, kind: type, attention: type, settings: Settings) -> None:
    layer.__class__ = kind
    layer.remat = settings.remat
    layer.attn.__class__ = attention
    layer.attn.kernel = settings.attention
    for _, module in layer.iter_modules():
        if type(module) in _PRODUCTS:
            module.__class__ = _PRODUCTS[type(module)]
            module.quantized, module.makes_whole = settings.quantization != "none", settings.remat == "none"


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


def _llama(architecture: Architecture, settings: Settings) -> Any:
    """Tunix's Llama3 with theta, hidden states as output. Its layers take the precision of their weights."""
    layer = architecture.layers[0]
    if layer.rope.kind != "default" or layer.rope.fraction != 1.0:
        raise InputError(
            f"This Llama uses rope_type={layer.rope.kind!r}, which the JAX backend (Tunix 0.1.7) does not compute. "
            "Allowed: default. Use backend=torch for this model."
        )
    config = replace(llama_config(architecture), shd_config=_activations(llama3.ShardingConfig.get_default_sharding()))
    model = llama3.Llama3(config, rngs=nnx.Rngs(0))
    for block in model.layers:
        _set_up(block, _LlamaLayer, LlamaAttention, settings)
        block.attn.theta = layer.rope.theta
    model.embedder.__class__ = _LlamaHidden
    if not architecture.tied:
        model.lm_head.__class__ = _LlamaHiddenUntied
    nnx.update(model, jax.tree.map(lambda array: array.astype(DTYPES[settings.dtype]), nnx.state(model)))
    return model


def _gemma4(architecture: Architecture, settings: Settings) -> Any:
    """Tunix's Gemma 4 with K and V apart, hidden states as output."""
    if not architecture.tied:
        raise InputError(
            "This Gemma 4 has tie_word_embeddings=false, which the JAX backend (Tunix 0.1.7) does not compute. Use backend=torch."
        )
    if architecture.norm_epsilon != _GEMMA4_NORM_EPSILON:
        raise InputError(
            f"This Gemma 4 has rms_norm_eps={architecture.norm_epsilon}; the JAX backend (Tunix 0.1.7) computes with "
            f"{_GEMMA4_NORM_EPSILON} only. Use backend=torch."
        )
    sliding = next((layer for layer in architecture.layers if layer.attention == "sliding"), architecture.layers[0])
    whole = next((layer for layer in architecture.layers if layer.attention == "global"), sliding)
    config = gemma4.ModelConfig(
        num_layers=len(architecture.layers),
        num_embed=architecture.vocab,
        embed_dim=architecture.hidden,
        hidden_dim=architecture.ffn,
        num_heads=architecture.heads,
        head_dim=sliding.head_dim,
        num_kv_heads=sliding.kv_heads,
        sliding_window_size=sliding.window or None,
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
        param_dtype=DTYPES[settings.dtype],
        dtype=DTYPES[settings.dtype],
        shd_config=_activations(gemma4.ShardingConfig.get_default_sharding()),
    )
    model = gemma4.Gemma4(config, rngs=nnx.Rngs(0))
    for layer, block in zip(architecture.layers, model.layers, strict=True):
        if not layer.shared_kv:
            block.attn.kv_einsum = _KeyValue(config, layer.kv_heads, layer.head_dim)
        _set_up(block, _Gemma4Layer, Gemma4Attention, settings)
    model.embedder.__class__ = _Gemma4Hidden
    return model


_FAMILIES = {"llama": _llama, "gemma4": _gemma4}
