"""The initial values of a LoRA adapter, drawn once from the seed and loaded into either backend.

Both backends start from the same numbers, so that what they learn can be compared; neither framework's own generator is asked.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

PEFT_PREFIX = "base_model.model."
"""What PEFT puts before a module's own name in an adapter file."""


@dataclass(frozen=True)
class LoraShape:
    """A linear module that gets an adapter, by its Hugging Face name."""

    hf: str
    """E.g. `model.layers.0.self_attn.q_proj`."""
    in_features: int
    out_features: int


def lora_names(module: str) -> tuple[str, str]:
    """Names of the A and the B array of `module` in a PEFT adapter file."""
    return f"{PEFT_PREFIX}{module}.lora_A.weight", f"{PEFT_PREFIX}{module}.lora_B.weight"


def initial_lora(modules: Sequence[LoraShape], rank: int, seed: int) -> dict[str, FloatArray]:
    """Return A [rank, in] and B [out, rank] of each module by PEFT name, float32.

    A is uniform in +-1/sqrt(in), which is what PEFT's `kaiming_uniform_(a=sqrt(5))` gives; B is zero, so that the adapter starts
    as no change. Each module has a stream of its own, keyed by seed and name: neither order nor the other targets matter.
    """
    arrays: dict[str, FloatArray] = {}
    for module in modules:
        name_a, name_b = lora_names(module.hf)
        key = int.from_bytes(hashlib.sha256(f"{seed}:{module.hf}".encode()).digest()[:16], "little")
        uniform = np.random.Generator(np.random.Philox(key=key)).random((rank, module.in_features), dtype=np.float32)
        arrays[name_a] = ((2 * uniform - 1) / np.float32(math.sqrt(module.in_features))).astype(np.float32)
        arrays[name_b] = np.zeros((module.out_features, rank), np.float32)
    return arrays
