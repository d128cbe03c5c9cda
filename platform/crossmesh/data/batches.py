"""The arrays that both backends receive: sequences with loss mask, positions and segment ids, and how wide each micro-batch is."""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
ARRAYS = ("tokens", "loss_mask", "positions", "segment_ids", "row_keys")
"""Fields of a `PackedBatch` that are arrays."""


@dataclass(frozen=True)
class Row:
    """One tokenized training row."""

    id: str
    """Stable identity of the row: digest of its content."""
    tokens: IntArray
    """[length] token ids, template included."""
    loss_mask: npt.NDArray[np.bool_]
    """[length]; True where the token is the assistant's and is to be predicted."""


def row_key(row_id: str, occurrence: int) -> int:
    """32 bits that name a row within an optimizer step; `occurrence` counts rows of the same content in it, from 0."""
    return int.from_bytes(hashlib.blake2b(f"{row_id}/{occurrence}".encode(), digest_size=4).digest(), "little")


@dataclass(frozen=True)
class PackedBatch:
    """All sequences of one optimizer step, over the whole mesh, split into micro-batches.

    All arrays are [accumulation, sequences, length]; `sequences` is the micro-batch of every data-parallel rank together, rank 0's
    first, and a backend takes its own part. Position t predicts token t+1, so `loss_mask[..., t]` speaks of
    `tokens[..., t]` as a *target*: the loss of target t comes from the logits at t-1, and `loss_mask[..., 0]` is False.
    """

    tokens: IntArray
    loss_mask: npt.NDArray[np.bool_]
    positions: IntArray
    """Restart at 0 with every row."""
    segment_ids: IntArray
    """1, 2, ... for the rows packed into a sequence, 0 for padding."""
    row_keys: npt.NDArray[np.uint32]
    """`row_key` of the row that a token is of; 0 for padding. With the position it names the token, wherever packing and micro-batches
    put it: LoRA dropout draws its masks from the two."""
    row_ids: tuple[str, ...]
    widths: tuple[int, ...] = ()
    """Tokens that the sequences of each micro-batch are computed at: what lies behind is padding. None: all of `length`."""

    @property
    def loss_tokens(self) -> int:
        """Tokens that carry loss."""
        return int(self.loss_mask.sum())

    @property
    def padded_tokens(self) -> int:
        """Tokens that are computed: real ones and padding."""
        accumulation, sequences, length = self.segment_ids.shape
        return int(sequences * sum(self.widths or (length,) * accumulation))

    @property
    def real_tokens(self) -> int:
        """Tokens that are not padding."""
        return int((self.segment_ids > 0).sum())
