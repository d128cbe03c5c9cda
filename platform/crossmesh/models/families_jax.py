"""The model of each family for the JAX backend. Importing this imports Tunix, which changes flax's global state: workers only.

What Tunix 0.1.7 computes differently from the Hugging Face model is put right in the family's file, and every such point says so.
"""

from typing import Any

from crossmesh.models.architecture import Architecture
from crossmesh.models.gemma4_jax import make_gemma4
from crossmesh.models.layers_jax import Settings
from crossmesh.models.llama_jax import make_llama

_MAKERS = {"gemma4": make_gemma4, "llama": make_llama}


def make_model(architecture: Architecture, settings: Settings) -> Any:
    """Tunix's model of `architecture`, giving hidden states. Call it under `nnx.eval_shape`, or it draws weights.

    Raises `InputError` for what is not computed as the Hugging Face model does.
    """
    return _MAKERS[architecture.family](architecture, settings)
