"""Tunix's Llama 3 as the Hugging Face model computes it. Importing this imports Tunix: workers only."""

from dataclasses import replace
from typing import Any

import jax
from flax import nnx
from tunix.models.llama3 import model as llama3

from crossmesh.models.architecture import Architecture
from crossmesh.models.families.dense_jax import DenseAttention, dense_sizes, set_up_dense
from crossmesh.models.jax.layers_jax import DTYPES, HiddenStates, ModelConfig, activations


class _Attention(DenseAttention, llama3.Attention):
    pass


class Llama(HiddenStates, llama3.Llama3):
    """Tunix's model with hidden states as output."""


def llama_config(architecture: Architecture) -> Any:
    """Tunix's configuration of a Llama, everything that is not the architecture's as Tunix has it."""
    return llama3.ModelConfig(**dense_sizes(architecture), weight_tying=architecture.tied)


def make_llama(
    architecture: Architecture, settings: ModelConfig, kind: type[Llama] = Llama, layer_kind: type[llama3.DecoderLayer] | None = None
) -> Any:
    """Tunix's Llama3 with theta, hidden states as output. Its layers take the precision of their weights.

    Of a `kind`, and with layers that are a `layer_kind`, where another family adds to it.
    """
    config = replace(llama_config(architecture), shd_config=activations(llama3.ShardingConfig.get_default_sharding()))
    model = set_up_dense(kind(config, rngs=nnx.Rngs(0)), architecture, settings, _Attention, llama3.Einsum, layer_kind)
    nnx.update(model, jax.tree.map(lambda array: array.astype(DTYPES[settings.dtype]), nnx.state(model)))
    return model
