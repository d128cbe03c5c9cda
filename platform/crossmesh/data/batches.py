"""The arrays that both backends receive: fixed-length sequences with loss mask, positions and segment ids."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Row:
    """One tokenized training row."""

    id: str
    """Stable identity of the row: digest of its content."""
    tokens: IntArray
    """[length] token ids, template included."""
    loss_mask: npt.NDArray[np.bool_]
    """[length]; True where the token is the assistant's and is to be predicted."""


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
    row_ids: tuple[str, ...]

    @property
    def loss_tokens(self) -> int:
        """Tokens that carry loss."""
        return int(self.loss_mask.sum())

    @property
    def padded_tokens(self) -> int:
        """Tokens that are computed: real ones and padding."""
        return int(self.segment_ids.size)

    @property
    def real_tokens(self) -> int:
        """Tokens that are not padding."""
        return int((self.segment_ids > 0).sum())


def pad_batch(rows: Sequence[Row], micro: int, length: int, pad_id: int) -> PackedBatch:
    """Lay `rows` out one a sequence, padded on the right to `length`, in micro-batches of `micro`; order is kept."""
    if len(rows) % micro:
        raise ValueError(f"{len(rows)} rows do not divide into micro-batches of {micro}")
    shape = (len(rows), length)
    tokens = np.full(shape, pad_id, np.int32)
    loss_mask = np.zeros(shape, np.bool_)
    segment_ids = np.zeros(shape, np.int32)
    for index, row in enumerate(rows):
        size = len(row.tokens)
        tokens[index, :size] = row.tokens
        loss_mask[index, :size] = row.loss_mask
        segment_ids[index, :size] = 1
    loss_mask[:, 0] = False
    positions = np.where(segment_ids > 0, np.arange(length, dtype=np.int32), 0).astype(np.int32)
    split = (len(rows) // micro, micro, length)
    return PackedBatch(
        tokens.reshape(split), loss_mask.reshape(split), positions.reshape(split), segment_ids.reshape(split), tuple(row.id for row in rows)
    )
