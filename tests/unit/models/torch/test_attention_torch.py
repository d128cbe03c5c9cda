"""Attention kernels: every kernel is told the same rule, and what cannot run is refused."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

from crossmesh.errors import InputError
from crossmesh.models.architecture import Architecture
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.kernels import check_kernel
from crossmesh.models.torch.attention_torch import attention_inputs, attention_masks
from crossmesh.models.weights.random_weights import architecture_config

SEGMENTS = np.array([[1] * 20 + [2] * 7 + [0] * 5, [1] * 32], np.int32)
POSITIONS = np.concatenate([[[*range(20), *range(7), *[0] * 5]], [range(32)]]).astype(np.int32)


def architecture_of(name: str) -> Architecture:
    return parse_architecture(json.loads(json.dumps(architecture_config(name))), name)


def inputs(kernel: str, name: str, positions: Any = POSITIONS, segments: Any = SEGMENTS) -> dict[str, Any]:
    return attention_inputs(kernel, architecture_of(name), torch.float32, positions, segments, "cpu")


def test_a_token_sees_its_row_up_to_itself_within_the_window() -> None:
    masks = attention_masks(torch.from_numpy(SEGMENTS), architecture_of("tiny_gemma4"))
    assert isinstance(masks, dict)
    full, sliding = masks["full_attention"][0, 0], masks["sliding_attention"][0, 0]
    assert full[19].nonzero()[:, 0].tolist() == list(range(20))
    assert sliding[19].nonzero()[:, 0].tolist() == list(range(4, 20))  # a window of 16, its own token included
    assert full[22].nonzero()[:, 0].tolist() == [20, 21, 22]
    assert sliding[22].nonzero()[:, 0].tolist() == [20, 21, 22]
    assert full[:27, 27:].sum() == 0
    assert full.any(dim=1).all()


@pytest.mark.parametrize("name", ["tiny_gemma4", "tiny_llama"])
def test_block_masks_and_additive_masks_say_what_the_boolean_ones_say(name: str) -> None:
    truth = attention_masks(torch.from_numpy(SEGMENTS), architecture_of(name))
    blocks, scores = (inputs(kernel, name)["attention_mask"] for kernel in ("flex", "plain"))
    for kind in truth if isinstance(truth, dict) else [None]:
        expected, block, score = (masks[kind] if kind else masks for masks in (truth, blocks, scores))
        assert torch.equal(create_mask(block.mask_mod, 2, 1, 32, 32, device="cpu"), expected)
        assert torch.equal(score == 0, expected)
        assert score[~expected].max() < -1e38


def test_flash_is_told_where_rows_begin_and_end() -> None:
    given = inputs("flash", "tiny_gemma4")
    assert given["cu_seq_lens_q"].tolist() == [0, 20, 27, 32, 64]
    assert given["max_length_k"] == 32
    assert given["position_ids"].shape == (1, 64)
    assert given["attention_mask"] == {"full_attention": None, "sliding_attention": None}


def test_rows_that_are_alone_in_their_sequence_need_no_mask_with_sdpa_but_for_windows() -> None:
    alone = np.array([[1] * 20 + [0] * 12, [0] * 32], np.int32)
    assert inputs("sdpa", "tiny_llama", segments=alone)["attention_mask"] is None
    masks = inputs("sdpa", "tiny_gemma4", segments=alone)["attention_mask"]
    assert masks["full_attention"] is None
    assert masks["sliding_attention"][0, 0, 31].nonzero()[:, 0].tolist() == list(range(16, 32))
    assert isinstance(inputs("sdpa", "tiny_llama")["attention_mask"], torch.Tensor)
    behind = np.array([[0] * 4 + [1] * 28, [1] * 32], np.int32)  # padding before a row: being causal would not be enough
    assert isinstance(inputs("sdpa", "tiny_llama", segments=behind)["attention_mask"], torch.Tensor)


@pytest.mark.parametrize(
    ("kernel", "dtype", "device", "message"),
    [
        ("flex", "float32", "cpu", "no backward pass"),
        ("flash", "bfloat16", "cpu", "NVIDIA GPUs only"),
        ("flash", "float32", "cuda", "computes in bfloat16"),
        ("flash", "bfloat16", "cuda", "layer 5 are 512 wide"),
    ],
)
def test_kernels_that_cannot_train_are_refused(kernel: str, dtype: str, device: str, message: str) -> None:
    architecture = architecture_of("tiny_gemma4")
    wide = replace(architecture, layers=(*architecture.layers[:5], replace(architecture.layers[5], head_dim=512)))
    with pytest.raises(InputError, match=message):
        check_kernel(kernel, wide, dtype, device, flash=True)


def test_flash_without_its_package_says_what_to_install() -> None:
    with pytest.raises(InputError, match=r"flash_attn is not installed.*backend\.attention=sdpa"):
        check_kernel("flash", architecture_of("tiny_llama"), "bfloat16", "cuda", flash=False)
