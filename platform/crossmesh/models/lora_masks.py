"""Which inputs LoRA dropout drops: a pure function of seed, optimizer step, row, position in the row, module and feature.

Nothing is drawn in an order, so the masks are the same on both backends, in every split of a batch over micro-batches, sequences and
devices, in a pass that is computed again, and after a restart. Bits come from 32-bit integer arithmetic, which both frameworks do alike:
the mixing function lowbias32 (Chris Wellons' hash-prospector: two multiplications, exact bias 0.17), keyed with 64 bits of every module
at every step. The functions here take numpy's and JAX's uint32 arrays; torch's are in `lora_masks_torch.py`.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

GOLDEN = np.uint32(0x9E3779B9)
"""2^32 over the golden ratio: consecutive positions lie far apart."""
FIRST, SECOND = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
"""lowbias32's factors."""
_LEVELS = 1 << 16
"""Values that a feature's 16 bits have; two features share a word."""


def threshold(probability: float) -> int:
    """A feature is dropped when its 16 bits, a number below 65,536, are below this."""
    return min(round(probability * _LEVELS), _LEVELS - 1)


def scale(probability: float) -> float:
    """What is kept is multiplied by this: one over the share that is kept, in the steps that 16 bits allow."""
    return _LEVELS / (_LEVELS - threshold(probability))


def step_key(seed: int, step: int) -> npt.NDArray[np.uint32]:
    """Two words [2] for the optimizer step, counted from 0."""
    return _words(f"step/{seed}/{step}")


def module_keys(names: Sequence[str]) -> npt.NDArray[np.uint32]:
    """Two words [len(names), 2] for each module, by its Hugging Face path."""
    return np.stack([_words(f"module/{name}") for name in names])


def _words(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(hashlib.blake2b(text.encode(), digest_size=8).digest(), "<u4")


def mix(words: Any) -> Any:
    """lowbias32: a permutation of all 32-bit words, each bit of which depends on every bit of the input."""
    words = (words ^ (words >> np.uint32(16))) * FIRST
    words = (words ^ (words >> np.uint32(15))) * SECOND
    return words ^ (words >> np.uint32(16))


def token_words(row_keys: Any, positions: Any) -> Any:
    """A word for each token, of the key of its row (`PackedBatch.row_keys`) and its position there; uint32 arrays of one shape."""
    return mix(row_keys + positions * GOLDEN)


def module_words(tokens: Any, keys: Any) -> tuple[Any, Any]:
    """Two words for each of `tokens` in a module at a step; `keys` [2] is `module_keys` of the module, exclusive or `step_key`."""
    first, second = mix(keys)
    return mix(tokens ^ first), mix(tokens + second)


def kept(first: Any, second: Any, features: Any, dropped_below: int) -> Any:
    """Whether each of `features`, numbered in the whole input, is kept; the words of a token broadcast against them."""
    words = (first ^ mix(features >> np.uint32(1))) * FIRST
    words = (words ^ (words >> np.uint32(15)) ^ second) * SECOND
    words = words ^ (words >> np.uint32(16))
    bits = (words >> ((features & np.uint32(1)) * np.uint32(16))) & np.uint32(0xFFFF)
    # The top bit is turned, so that the same bits as a signed number, below another, say the same.
    return (bits ^ np.uint32(0x8000)) >= np.uint32(dropped_below)
