"""Attention over packed sequences on JAX: a token sees what precedes it in its own segment, and in its window.

Tunix's blocks take a mask; its flash path has none, so that it cannot keep packed rows apart. The families' attention takes segment ids
in the mask's place and calls `attend`; projections, norms and rotation stay Tunix's own modules. Two kernels compute the same: `plain`
einsums anywhere, and `splash` on TPU, which never stores the scores.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import PartitionSpec

from crossmesh.hardware.mesh import BATCH_AXES
from crossmesh.models.jax.sharding_jax import HEADS, context_mesh

_LANES = 128
"""The splash kernel takes sequence lengths and head sizes in multiples of this."""
_SPLASH_BLOCKS = (1024, 768, 512, 384, 256, 128)
"""Block sizes tried, the first that divides the sequence: larger ones read keys and values less often."""
_SPLASH_BLOCK_VALUES = {2: 1024 * 256, 4: 512 * 128}
"""Most values of a block of queries or keys, by their bytes: in bfloat16 with heads of 512 and blocks of 1,024 the backward pass needs more
than a v5p core's scoped VMEM, in float32 with heads of 128 already (found by compiling for it)."""
_HIDDEN = -2.3819763e38
"""Score of what is not seen: Tunix's, finite, so that a row without any key has no NaN."""


def attend(query: Any, key: Any, value: Any, segment_ids: Any, window: int, kernel: str, cap: float = 0.0) -> Any:
    """Causal attention within segments: `query` [B, T, N, H], `key` and `value` [B, T, K, H] with K dividing N, returns [B, T, N, H].

    `segment_ids` [B, T] is 0 for padding, whose result means nothing. `window` is how many tokens are seen, the own one included; 0: all.
    Scores are not scaled: scale the query. With `cap` they are `cap * tanh(scores / cap)`.
    """
    if kernel == "splash":
        return _splash_on_mesh(query, key, value, segment_ids, window, cap)
    return _plain(query, key, value, segment_ids, window, cap)


def _plain(query: Any, key: Any, value: Any, segment_ids: Any, window: int, cap: float) -> Any:
    batch, length, heads, width = query.shape
    grouped = query.reshape(batch, length, key.shape[2], heads // key.shape[2], width)
    scores = jnp.einsum("BTKGH,BSKH->BKGTS", grouped, key)
    scores = cap * jnp.tanh(scores / cap) if cap else scores
    scores = jnp.where(_seen(segment_ids, window)[:, None, None], scores, _HIDDEN)
    weights = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(key.dtype)
    return jnp.einsum("BKGTS,BSKH->BTKGH", weights, value).reshape(query.shape)


def _seen(segment_ids: Any, window: int) -> Any:
    """[B, T, T], True where token t sees token s. Rows lie in one piece, so places differ within a segment as positions do."""
    length = segment_ids.shape[1]
    distance = jnp.arange(length)[:, None] - jnp.arange(length)[None, :]
    near = (distance >= 0) & (distance < window) if window else distance >= 0
    return near & (segment_ids[:, :, None] == segment_ids[:, None, :])


def _splash_on_mesh(query: Any, key: Any, value: Any, segment_ids: Any, window: int, cap: float) -> Any:
    """The splash kernel on every device's own sequences and heads. Needs the mesh as context (`with mesh:`)."""
    split = PartitionSpec(*HEADS)
    compute = jax.shard_map(
        functools.partial(splash_attend, window=window, cap=cap),
        mesh=context_mesh(),
        in_specs=(split, split, split, PartitionSpec(BATCH_AXES, None)),
        out_specs=split,
        check_vma=False,
    )
    return compute(query, key, value, segment_ids)


def splash_attend(query: Any, key: Any, value: Any, segment_ids: Any, window: int, interpret: bool = False, cap: float = 0.0) -> Any:
    """`attend` by JAX's Pallas kernel, on one device; `interpret` runs it anywhere, slowly, for tests.

    Lengths and head sizes that the kernel does not take are filled up: with padding tokens behind, and with zeros that add nothing to a
    product.
    """
    length, heads, width = query.shape[1:]
    longer, wider = -length % _LANES, -width % _LANES
    query, key, value = (jnp.pad(array, ((0, 0), (0, longer), (0, 0), (0, wider))).swapaxes(1, 2) for array in (query, key, value))
    segment_ids = jnp.pad(segment_ids, ((0, 0), (0, longer)))
    block = splash_block(length + longer, width + wider, query.dtype.itemsize)
    computed = jax.vmap(_splash_kernel(length + longer, heads, block, window, interpret, cap))(
        query, key, value, splash.SegmentIds(segment_ids, segment_ids)
    )
    return computed.swapaxes(1, 2)[:, :length, :, :width]


def splash_block(length: int, width: int, itemsize: int) -> int:
    """Tokens of a block for sequences of `length`, a multiple of 128, and heads of `width` values of `itemsize` bytes."""
    possible = [size for size in _SPLASH_BLOCKS if length % size == 0]
    return next((size for size in possible if size * width <= _SPLASH_BLOCK_VALUES[itemsize]), possible[-1])


def _splash_kernel(length: int, heads: int, block: int, window: int, interpret: bool, cap: float) -> Any:
    shape = (length, length)
    mask = masks.LocalMask(shape, window_size=(window - 1, 0), offset=0) if window else masks.CausalMask(shape)
    sizes = splash.BlockSizes(
        block_q=block,
        block_kv=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    return splash.make_splash_mha(
        masks.MultiHeadMask([mask] * heads),
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=cap or None,
        interpret=interpret,
    )
