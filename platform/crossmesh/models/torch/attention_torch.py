"""Attention kernels of the torch backend: what each needs, and the inputs that make a packed batch exact with it.

A token sees its own row of the sequence up to itself, within the layer's window. `attention_masks` says that as booleans; the kernels
that take something else (block masks, sequence boundaries) are given the same rule. transformers guesses rows from restarting positions
when it gets no mask, but only for some kernels and only in a batch of one, so it is always told.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from crossmesh.models.architecture import Architecture
from crossmesh.models.families.registry import family_of

IntArray = npt.NDArray[np.int32]

IMPLEMENTATIONS = {"plain": "eager", "sdpa": "sdpa", "flex": "flex_attention", "flash": "flash_attention_2"}
"""transformers' names of our kernels."""


def attention_masks(segment_ids: Tensor, architecture: Architecture) -> Tensor | dict[str, Tensor]:
    """Boolean masks [B, 1, T, T] from `segment_ids` [B, T], True where a query (third axis) may see a key (fourth).

    A token sees its own row of the sequence up to itself, within the layer's window. Padding sees padding, so that no softmax is
    over nothing; no real token sees it. Models with both attention kinds get one mask for each, by transformers' names for them.
    """
    distance = _distance(segment_ids)
    causal = (segment_ids[:, None, :, None] == segment_ids[:, None, None, :]) & (distance >= 0)
    window = _window(architecture)
    return {"full_attention": causal, "sliding_attention": causal & (distance < window)} if window else causal


def attention_inputs(
    kernel: str, architecture: Architecture, dtype: torch.dtype, positions: IntArray, segment_ids: IntArray, device: str
) -> dict[str, Any]:
    """Keyword arguments of a transformers decoder for arrays [B, T]: masks for its kernel, and positions.

    With `flash` the sequences are one long one (`flattened`), so that all that is left of a mask are the rows' boundaries.
    """
    arguments = _inputs_by_kind(kernel, architecture, dtype, positions, segment_ids, device)
    masks = arguments["attention_mask"]
    if isinstance(masks, dict) and family_of(architecture).one_mask:
        return {**arguments, "attention_mask": masks["sliding_attention"]}
    return arguments


def _inputs_by_kind(
    kernel: str, architecture: Architecture, dtype: torch.dtype, positions: IntArray, segment_ids: IntArray, device: str
) -> dict[str, Any]:
    """The same with masks by kind of layer where there are windows."""
    if kernel == "flash":
        return _flash_inputs(architecture, positions, segment_ids, device)
    if kernel == "sdpa" and not (np.diff(segment_ids, axis=1) > 0).any():
        return _unpacked_inputs(architecture, segment_ids.shape[1], device)
    segments = torch.from_numpy(segment_ids).to(device)
    masks: Any = _block_masks(segments, architecture) if kernel == "flex" else attention_masks(segments, architecture)
    if kernel == "plain":
        masks = _additive(masks, dtype)
    return {"attention_mask": masks, "position_ids": torch.from_numpy(positions).to(device, torch.int64)}


def flattened(kernel: str) -> bool:
    """Whether `kernel` takes all sequences of a micro-batch as one, [1, B * T]."""
    return kernel == "flash"


def _unpacked_inputs(architecture: Architecture, length: int, device: str) -> dict[str, Any]:
    """One row a sequence, padding behind it: being causal is enough, and without a mask SDPA takes its fastest path.

    What padding computes is seen by nobody, so it may have positions of its own.
    """
    positions = torch.arange(length, device=device)[None]
    window = _window(architecture)
    if not window:
        return {"attention_mask": None, "position_ids": positions}
    sliding = None
    if length > window:
        distance = _distance(positions)
        sliding = ((distance >= 0) & (distance < window))[None, None]
    return {"attention_mask": {"full_attention": None, "sliding_attention": sliding}, "position_ids": positions}


def _flash_inputs(architecture: Architecture, positions: IntArray, segment_ids: IntArray, device: str) -> dict[str, Any]:
    """Row boundaries over the flattened batch; every run of equal segment ids is a row, padding too. Windows are the kernel's own."""
    starts = np.ones(segment_ids.shape, np.bool_)
    starts[:, 1:] = np.diff(segment_ids, axis=1) != 0
    bounds = np.append(np.flatnonzero(starts), segment_ids.size)
    boundaries = torch.from_numpy(bounds.astype(np.int32)).to(device)
    longest = int(np.diff(bounds).max())
    return {
        "attention_mask": {"full_attention": None, "sliding_attention": None} if _window(architecture) else None,
        "position_ids": torch.from_numpy(positions.reshape(1, -1)).to(device, torch.int64),
        "cu_seq_lens_q": boundaries,
        "cu_seq_lens_k": boundaries,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def _block_masks(segments: Tensor, architecture: Architecture) -> BlockMask | dict[str, BlockMask]:
    """The rule of `attention_masks` as FlexAttention's block masks, which skip blocks that nobody sees."""
    window = _window(architecture)

    def causal(batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (segments[batch, query] == segments[batch, key]) & (query >= key)

    def sliding(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return causal(batch, head, query, key) & (query - key < window)

    count, length = segments.shape
    full = create_block_mask(causal, count, None, length, length, device=segments.device)
    if not window:
        return full
    return {"full_attention": full, "sliding_attention": create_block_mask(sliding, count, None, length, length, device=segments.device)}


def _additive(masks: Tensor | dict[str, Tensor], dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
    """The masks as numbers that are added to scores."""
    if isinstance(masks, dict):
        return {kind: _to_scores(mask, dtype) for kind, mask in masks.items()}
    return _to_scores(masks, dtype)


def _to_scores(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


def _distance(positions: Tensor) -> Tensor:
    """How far a key (second axis) lies before a query (first): [T, T]."""
    index = torch.arange(positions.shape[1], device=positions.device)
    return index[:, None] - index[None, :]


def _window(architecture: Architecture) -> int:
    """Tokens that sliding layers see; 0 in a model without them."""
    return max(layer.window for layer in architecture.layers)
