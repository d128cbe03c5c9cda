"""Tunix models for the JAX backend: built from an architecture, filled from a Hugging Face folder, adapted by Qwix.

Structure and arrays are kept apart, as a jitted step wants them: nothing is materialised until `load_base`, so the same functions serve
a planner that has no weights. This is also the one place that works around what Tunix 0.1.7 and Qwix 0.1.8 do differently from the
Hugging Face model; every such point says so. Importing this module imports Tunix, which changes flax's global state: workers only.
"""

import functools
import inspect
import types
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import numpy.typing as npt
from flax import nnx
from safetensors import safe_open
from tunix.models.gemma4 import model as gemma4
from tunix.models.llama3 import model as llama3

from crossmesh.errors import InputError
from crossmesh.hardware.mesh import AXES, MeshShape
from crossmesh.models.families import Architecture
from crossmesh.models.lora_jax import adapt
from crossmesh.models.targets import Target, Weight, all_weights
from crossmesh.spec.experiment import LoraSpec

_DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
_NUMPY_DTYPES: dict[str, Any] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
_GEMMA4_NORM_EPSILON = 1e-6
"""Written into Tunix's gemma4 `RMSNorm`."""


@dataclass(frozen=True)
class Structure:
    """A model without its arrays: what the program is compiled from."""

    architecture: Architecture
    graph: Any
    """`nnx.GraphDef`."""
    lora: Any
    """`nnx.State` of abstract LoRA arrays (float32); empty without an adapter."""
    base: Any
    """`nnx.State` of abstract base arrays in the compute precision."""


def device_mesh(shape: MeshShape) -> Any:
    """Arrange this process group's devices as `shape`; the compiler places what our shardings leave open."""
    sizes = tuple(getattr(shape, axis) for axis in AXES)
    return jax.make_mesh(sizes, AXES, axis_types=(jax.sharding.AxisType.Auto,) * len(AXES))


def build(architecture: Architecture, dtype: str, lora: LoraSpec | None = None, targets: tuple[Target, ...] = ()) -> Structure:
    """Build the abstract model, with an adapter on `targets` when `lora` is given. No array is made.

    Raises `InputError` for what Tunix does not compute as the Hugging Face model does.
    """
    model = nnx.eval_shape(lambda: _FAMILIES[architecture.family](architecture, dtype))
    if lora is not None:
        model = adapt(model, lora, targets)
    graph, adapter, base = nnx.split(model, nnx.LoRAParam, ...)
    return Structure(architecture, graph, adapter, _as_dtype(base, _DTYPES[dtype]))


def load_base(structure: Structure, folder: Path, dtype: str, mesh: Any) -> Any:
    """Read the base weights of `folder` into an `nnx.State`, tensor by tensor, each put on `mesh` with Tunix's own sharding.

    Raises `InputError` when a tensor is missing, has another shape, or belongs to a part of the model that is not computed here.
    """
    abstract = dict(structure.base.flat_state())
    shardings = dict(nnx.get_named_sharding(structure.base, mesh).flat_state())
    found = {}
    for weight, array in _read(folder, structure.architecture):
        path = (*weight.tunix, weight.tunix_param)
        if path not in abstract or abstract[path].get_value().shape != array.shape:
            raise AssertionError(f"models/targets.py says {path} {array.shape}, which Tunix's model does not have")
        placed = jax.device_put(array.astype(_NUMPY_DTYPES[dtype]), shardings[path].get_value())
        found[path] = abstract[path].replace(placed)
    if missing := set(abstract) - set(found):
        raise AssertionError(f"models/targets.py has no name for {sorted(map(str, missing))} of Tunix's model")
    return nnx.from_flat_state(found)


def put_lora(structure: Structure, arrays: Mapping[tuple[str | int, ...], npt.NDArray[np.float32]], mesh: Any) -> Any:
    """Put Qwix arrays by path (`adapters/convert.to_qwix`) on `mesh` as the model's LoRA `nnx.State`."""
    abstract = dict(structure.lora.flat_state())
    shardings = dict(nnx.get_named_sharding(structure.lora, mesh).flat_state())
    shapes = {path: variable.get_value().shape for path, variable in abstract.items()}
    given = {path: array.shape for path, array in arrays.items()}
    if shapes != given:
        raise AssertionError(f"Qwix made other LoRA arrays than the table says: {sorted(map(str, shapes.items() ^ given.items()))}")
    return nnx.from_flat_state(
        {path: abstract[path].replace(jax.device_put(arrays[path], shardings[path].get_value())) for path in abstract}
    )


def take_lora(lora: Any) -> dict[tuple[str | int, ...], npt.NDArray[np.float32]]:
    """Copy a LoRA `nnx.State` to the host, by path."""
    return {path: np.asarray(jax.device_get(variable.get_value())) for path, variable in lora.flat_state()}


def hidden_states(graph: Any, lora: Any, base: Any, tokens: Any, positions: Any, mask: Any, dropout_key: Any = None) -> Any:
    """Run the decoder. `tokens` and `positions` [B, T], `mask` [B, T, T] True where a token may look; returns [B, T, hidden].

    `dropout_key` feeds LoRA dropout and must be given when the adapter has one.
    """
    model = nnx.merge(graph, lora, base)
    if dropout_key is not None:
        model.set_attributes(qwix_rngs=nnx.Rngs(dropout=dropout_key))
    hidden, _ = model(tokens, positions, None, mask)
    return hidden


def output_weight(structure: Structure, base: Any) -> Any:
    """The output projection [vocab, hidden] in the compute precision."""
    if structure.architecture.tied:
        return base["embedder"]["input_embedding"].get_value()
    return base["lm_head"]["w"].get_value().T


def logits_of(cap: float, weight: Any, hidden: Any) -> Any:
    """Float32 logits [..., vocab] of `hidden` [..., D] by the output projection `weight` [vocab, D]; `cap` 0 does not cap them."""
    # The product is accumulated and kept in float32 whatever the compute precision: the loss is a float32 quantity.
    logits = jnp.einsum("...d,vd->...v", hidden.astype(weight.dtype), weight, preferred_element_type=jnp.float32)
    return cap * jnp.tanh(logits / cap) if cap else logits


def attention_mask(segment_ids: Any) -> Any:
    """[B, T, T] from `segment_ids` [B, T] (0 is padding): a token sees itself and what precedes it in its own row."""
    length = segment_ids.shape[1]
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    return same & (segment_ids[:, :, None] > 0) & jnp.tril(jnp.ones((length, length), jnp.bool_))


def all_logits(structure: Structure, lora: Any, base: Any, tokens: Any, positions: Any, segment_ids: Any) -> Any:
    """Float32 logits [B, T, vocab] at every position; for probes and tests, where that is small. Jit it."""
    hidden = hidden_states(structure.graph, lora, base, tokens, positions, attention_mask(segment_ids))
    return logits_of(structure.architecture.logit_softcap, output_weight(structure, base), hidden)


def _as_dtype(state: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, dtype), state)


def _read(folder: Path, architecture: Architecture) -> Iterator[tuple[Weight, npt.NDArray[Any]]]:
    """Yield every weight of the table with its array in Tunix's layout, one at a time."""
    with ExitStack() as stack:
        where = {}
        for file in sorted(folder.glob("*.safetensors")):
            handle = stack.enter_context(safe_open(file, "np"))
            where.update(dict.fromkeys(handle.keys(), handle))
        weights = list(all_weights(architecture))
        expected = {weight.hf_name for weight in weights}
        if missing := expected - set(where):
            raise InputError(f"{folder} lacks {len(missing)} tensors of a {architecture.family} model, e.g. {min(missing)}.")
        if unknown := {name for name in where if name.startswith(architecture.prefix)} - expected:
            raise InputError(
                f"{folder} has {len(unknown)} tensors that the JAX backend does not compute, e.g. {min(unknown)}. Use backend=torch."
            )
        for weight in weights:
            array = where[weight.hf_name].get_tensor(weight.hf_name)
            if array.shape != weight.hf_shape:
                raise InputError(f"{folder}: {weight.hf_name} has shape {array.shape}, config.json says {weight.hf_shape}.")
            split = array.reshape(weight.out_shape + weight.in_shape)
            yield weight, np.ascontiguousarray(split.transpose(weight.axes) if weight.axes else split)


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


class _LlamaHidden(llama3.Embedder):
    """Gives back the hidden states where Tunix would make logits: the loss makes them only where it needs them."""

    def decode(self, x: Any) -> Any:
        return x


class _LlamaHiddenUntied(llama3.Einsum):
    """As `_LlamaHidden`, for a model whose output projection is a weight of its own."""

    def __call__(self, x: Any) -> Any:
        return x


class _Gemma4Hidden(gemma4.Embedder):
    """As `_LlamaHidden`."""

    def decode(self, x: Any) -> Any:
        return x


@functools.cache
def _attention_with_theta(theta: float) -> type:
    """Tunix's llama3 attention, rotating with `theta`.

    Tunix 0.1.7 calls `apply_rope` without `config.rope_theta`, so every Llama is computed with the default of 1e6. The subclass runs the
    very same code with an `apply_rope` that knows theta; Tunix's own class and module stay untouched.
    """
    original = llama3.Attention.block
    parameters = inspect.signature(llama3.apply_rope).parameters
    if "apply_rope" not in original.__code__.co_names or "rope_theta" not in parameters:
        raise AssertionError("Tunix's llama3 attention no longer calls apply_rope(..., rope_theta): look at it anew")
    scope = {**original.__globals__, "apply_rope": functools.partial(llama3.apply_rope, rope_theta=theta)}
    block = types.FunctionType(original.__code__, scope, original.__name__, original.__defaults__, original.__closure__)
    return type("Attention", (llama3.Attention,), {"block": block})


def _llama(architecture: Architecture, dtype: str) -> Any:
    """Tunix's Llama3 with theta, hidden states as output. Its layers take the precision of their weights."""
    layer = architecture.layers[0]
    if layer.rope.kind != "default" or layer.rope.fraction != 1.0:
        raise InputError(
            f"This Llama uses rope_type={layer.rope.kind!r}, which the JAX backend (Tunix 0.1.7) does not compute. "
            "Allowed: default. Use backend=torch for this model."
        )
    config = llama3.ModelConfig(
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
    model = llama3.Llama3(config, rngs=nnx.Rngs(0))
    for block in model.layers:
        block.attn.__class__ = _attention_with_theta(layer.rope.theta)
    model.embedder.__class__ = _LlamaHidden
    if not architecture.tied:
        model.lm_head.__class__ = _LlamaHiddenUntied
    nnx.update(model, jax.tree.map(lambda array: array.astype(_DTYPES[dtype]), nnx.state(model)))
    return model


def _gemma4(architecture: Architecture, dtype: str) -> Any:
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
        param_dtype=_DTYPES[dtype],
        dtype=_DTYPES[dtype],
    )
    model = gemma4.Gemma4(config, rngs=nnx.Rngs(0))
    for layer, block in zip(architecture.layers, model.layers, strict=True):
        if not layer.shared_kv:
            block.attn.kv_einsum = _KeyValue(config, layer.kv_heads, layer.head_dim)
    model.embedder.__class__ = _Gemma4Hidden
    return model


_FAMILIES = {"llama": _llama, "gemma4": _gemma4}
