"""What one backend does not compute of an architecture that the other does.

Pure, so that planners and drivers refuse it before a device is had.
"""

from crossmesh.errors import InputError
from crossmesh.models.architecture import Architecture

GEMMA4_EPSILON = 1e-6
"""Written into Tunix's gemma4 `RMSNorm`."""


def check_backend(architecture: Architecture, backend: str) -> None:
    """Raise `InputError` for what `backend` (`jax` or `torch`) does not compute as transformers does."""
    if backend != "jax" or not architecture.family.startswith("gemma"):
        return
    name = architecture.family.replace("gemma", "Gemma ")
    if not architecture.tied:
        raise InputError(
            f"This {name} has tie_word_embeddings=false, which the JAX backend (Tunix 0.1.7) does not compute. Use backend=torch."
        )
    if architecture.family == "gemma4" and architecture.norm_epsilon != GEMMA4_EPSILON:
        raise InputError(
            f"This {name} has rms_norm_eps={architecture.norm_epsilon}; the JAX backend (Tunix 0.1.7) computes with "
            f"{GEMMA4_EPSILON} only. Use backend=torch."
        )
