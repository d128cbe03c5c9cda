"""The initial values of a LoRA adapter, drawn once from the seed and loaded into either backend.

Both backends start from the same numbers, so that what they learn can be compared; neither framework's own generator is asked.
"""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from crossmesh.models.lora import LoraModule

FloatArray = npt.NDArray[np.float32]

PEFT_PREFIX = "base_model.model."
"""What PEFT puts before a module's own name in an adapter file."""


def lora_names(module: str) -> tuple[str, str]:
    """Names of the A and the B array of `module` in a PEFT adapter file."""
    return f"{PEFT_PREFIX}{module}.lora_A.weight", f"{PEFT_PREFIX}{module}.lora_B.weight"


def initial_lora(modules: Sequence[LoraModule], seed: int) -> dict[str, FloatArray]:
    """Return A [rank, in] and B [out, rank] of each module by PEFT name, float32.

    A is uniform in +-1/sqrt(in), which is what PEFT's `kaiming_uniform_(a=sqrt(5))` gives; B is zero, so that the adapter starts
    as no change. Each module has a stream of its own, keyed by seed and name: neither order nor the other targets matter.
    """
    arrays: dict[str, FloatArray] = {}
    for module in modules:
        target = module.target
        name_a, name_b = lora_names(target.hf)
        key = int.from_bytes(hashlib.sha256(f"{seed}:{target.hf}".encode()).digest()[:16], "little")
        uniform = np.random.Generator(np.random.Philox(key=key)).random((module.rank, target.in_features), dtype=np.float32)
        arrays[name_a] = ((2 * uniform - 1) / np.float32(math.sqrt(target.in_features))).astype(np.float32)
        arrays[name_b] = np.zeros((target.out_features, module.rank), np.float32)
    return arrays
