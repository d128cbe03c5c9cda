"""LoRA dropout on torch: the masks of `lora_masks.py`, computed on int32 tensors, whose products wrap as uint32's do.

One `LoraMasks` makes the words of a micro-batch's tokens for all modules of a model before the forward pass, and they stay through the
backward pass, where checkpointed layers ask again. To `torch.compile` a mask is one operation of tensors, whatever the module.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from crossmesh.models.lora_masks import FIRST, GOLDEN, SECOND, mix, module_keys, scale, step_key, threshold

_FIRST, _SECOND, _GOLDEN = (int(factor.astype(np.int32)) for factor in (FIRST, SECOND, GOLDEN))
_HALF = 1 << 15
"""Between a number of 16 bits and the same bits as a signed one, top bit turned."""


def mask_words(*, on_cpu: bool) -> int:
    """Words that are computed at once: few stay in a CPU's cache, many fill a GPU and bound what it needs beside the mask."""
    return 1 << 16 if on_cpu else 1 << 22


class LoraMasks:
    """Gives every module the words of the tokens at hand."""

    def __init__(self, names: Sequence[str], seed: int, *, on_cpu: bool) -> None:
        self.block = mask_words(on_cpu=on_cpu)
        self._index = {name: index for index, name in enumerate(names)}
        self._keys, self._seed = module_keys(names), seed
        self._users: list[LoraDropout] = []

    def join(self, dropout: "LoraDropout") -> None:
        """Give `dropout` its words from the next start on."""
        self._users.append(dropout)

    def start(self, step: int, row_keys: npt.NDArray[np.uint32], positions: npt.NDArray[np.int32], device: str) -> None:
        """Compute the words of a micro-batch's tokens in every module, two int32 [tokens] each."""
        salts = torch.from_numpy(mix(self._keys ^ step_key(self._seed, step)).view(np.int32)).to(device)
        keys, places = (torch.from_numpy(array.reshape(-1).view(np.int32)).to(device) for array in (row_keys, positions))
        tokens = _mixed(keys + places * _GOLDEN)
        first, second = _mixed(tokens ^ salts[:, :1]), _mixed(tokens + salts[:, 1:])
        for user in self._users:
            user.first_words, user.second_words = first[self._index[user.name]], second[self._index[user.name]]


def _which_dropped(first: Tensor, second: Tensor, features: Tensor, odd: int, count: int, below: int, block: int) -> Tensor:
    """Which of `count` features of each token are dropped, bool [tokens, count], from a module's words of the tokens.

    `features` are the mixed numbers of the words that hold them, int32 [words]; with `odd` they begin with the second half of a word.
    `block` words are computed at once.
    """
    found = torch.empty((len(first), count), dtype=torch.bool, device=first.device)
    rows = max(1, block // len(features))
    for start in range(0, len(first), rows):
        own = slice(start, start + rows)
        words = first[own, None] ^ features
        words.mul_(_FIRST)
        words.bitwise_xor_(_shifted(words, 15)).bitwise_xor_(second[own, None]).mul_(_SECOND)
        words.bitwise_xor_(_shifted(words, 16))
        # The low half of a word is the even feature, as memory has it; signed, the bits are as evenly spread.
        bits = words.view(torch.int16)[:, odd : odd + count]
        torch.lt(bits, below, out=found[own])
    return found


def _dropped_shape(first: Tensor, _second: Tensor, _features: Tensor, _odd: int, count: int, _below: int, _block: int) -> Tensor:
    return first.new_empty((first.shape[0], count), dtype=torch.bool)


_dropped = torch.library.custom_op("crossmesh::lora_dropped", _which_dropped, mutates_args=())
_dropped.register_fake(_dropped_shape)


class LoraDropout(nn.Module):
    """Takes the place of PEFT's `nn.Dropout`; drops nothing in evaluation.

    `first` and `count` say which features of the module's input are here, where tensor parallelism divides it.
    """

    features: Tensor
    first_words: Tensor
    """Of the tokens at hand, with `second_words`; set by `LoraMasks.start`."""
    second_words: Tensor

    def __init__(self, masks: LoraMasks, name: str, probability: float, first: int, count: int) -> None:
        super().__init__()
        self.masks, self.name, self.probability, self.first, self.count = masks, name, probability, first, count
        self.below, self.block = threshold(probability) - _HALF, masks.block
        masks.join(self)
        words = np.arange(first // 2, (first + count + 1) // 2, dtype=np.uint32)
        self.register_buffer("features", torch.from_numpy(mix(words).view(np.int32)), persistent=False)

    def part(self, index: int, parts: int) -> "LoraDropout":
        """The same where only this part of the input is."""
        count = self.count // parts
        return LoraDropout(self.masks, self.name, self.probability, self.first + index * count, count)

    def forward(self, activation: Tensor) -> Tensor:
        """`activation` [..., count] with features dropped and the others scaled up, as `nn.Dropout` does."""
        if not self.training:
            return activation
        odd = self.first % 2
        dropped = _dropped(self.first_words, self.second_words, self.features, odd, self.count, self.below, self.block)
        result: Tensor = _Drop.apply(activation, dropped.view(activation.shape), scale(self.probability))
        return result


class _Drop(torch.autograd.Function):
    """Keeps a byte for each value, as torch's own dropout does on a GPU."""

    @staticmethod
    def forward(context: Any, values: Tensor, dropped: Tensor, factor: float) -> Tensor:
        context.save_for_backward(dropped)
        context.factor = factor
        return (values * factor).masked_fill_(dropped, 0)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (dropped,) = context.saved_tensors
        return (gradients[0] * context.factor).masked_fill_(dropped, 0), None, None


def _mixed(words: Tensor) -> Tensor:
    """`lora_masks.mix` of int32."""
    words = (words ^ _shifted(words, 16)).mul_(_FIRST)
    words.bitwise_xor_(_shifted(words, 15)).mul_(_SECOND)
    return words.bitwise_xor_(_shifted(words, 16))


def _shifted(words: Tensor, by: int) -> Tensor:
    """Shift right, filled up with zeros: torch fills int32 up with the sign."""
    return (words >> by).bitwise_and_((1 << (32 - by)) - 1)
