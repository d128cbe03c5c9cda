"""The model of each family for the JAX backend. Importing this imports Tunix, which changes flax's global state: workers only.

What Tunix 0.1.7 computes differently from the Hugging Face model is put right in the family's file, and every such point says so.
"""

from typing import Any

from crossmesh.models.architecture import Architecture
from crossmesh.models.families.gemma3.model_jax import make_gemma3
from crossmesh.models.families.gemma4.model_jax import make_gemma4
from crossmesh.models.families.llama.model_jax import make_llama
from crossmesh.models.families.qwen2.model_jax import make_qwen2
from crossmesh.models.families.qwen3.model_jax import make_qwen3
from crossmesh.models.jax.layers_jax import ModelConfig
from crossmesh.models.supported import check_backend

_MAKERS = {
    "llama": make_llama,
    "mistral": make_llama,
    "gemma2": make_gemma3,
    "gemma3": make_gemma3,
    "gemma4": make_gemma4,
    "qwen2": make_qwen2,
    "qwen3": make_qwen3,
    "qwen3_moe": make_qwen3,
}


def make_model(architecture: Architecture, settings: ModelConfig) -> Any:
    """Tunix's model of `architecture`, giving hidden states. Call it under `nnx.eval_shape`, or it draws weights.

    Raises `InputError` for what is not computed as the Hugging Face model does.
    """
    check_backend(architecture, "jax")
    return _MAKERS[architecture.family](architecture, settings)
