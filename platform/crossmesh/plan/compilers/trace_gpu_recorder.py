"""Watches what torch does: which memory comes and goes, how many FLOP its products take, how many bytes its operations move.

Storages are watched, not tensors, and views share one. It sees the operations that torch dispatches, so not what a kernel takes for itself
while it runs. Tensors may be fake or real.
"""

import weakref
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from crossmesh.compat.tracing_torch import DispatchMode, FakeTensor, aten, in_backward, resizes_seen, storage_key, tree_leaves
from crossmesh.plan.compilers.allocations import Change

_ATEN = torch.ops.aten
GATHERED = "gathered"
"""Weights that are whole while they are used, and the buffers that gather them."""
_ROWS_OF = {_ATEN.embedding, _ATEN.index_select, _ATEN.index, _ATEN.gather}
"""Operations that read of their source no more than they give."""
_FREE = {_ATEN.empty, _ATEN.empty_like, _ATEN.empty_strided, _ATEN.new_empty, _ATEN.new_empty_strided, aten("_unsafe_view")}
"""Operations beside views that move nothing."""
_ATTENTION = aten("_scaled_dot_product_flash_attention_for_cpu")
_ATTENTION_BACKWARD = aten("_scaled_dot_product_flash_attention_for_cpu_backward")
_VALUE_OF = aten("_local_scalar_dense").default


class Recorder(DispatchMode):
    """Records while it is entered; once only."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Change] = []
        self.known: dict[int, str] = {}
        """Kinds of blocks that are told apart by who made them."""
        self.flops = 0
        self.traffic = 0
        """Bytes that operations read and wrote."""
        self._stage = 0
        self._blocks: dict[int, int] = {}
        self._references: dict[int, Any] = {}
        self._sizes: dict[int, int] = {}
        self._resizes = ExitStack()

    def __enter__(self) -> "Recorder":
        """Start."""
        self._resizes.enter_context(resizes_seen(self._resized))
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop."""
        self._resizes.close()
        super().__exit__(*error)

    def _resized(self, storage: Any) -> None:
        self.known[self._see(storage)] = GATHERED

    def name(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Say of which kind the memory of `tensors` is; they count from here on at the latest."""
        for tensor in tensors:
            self.known[self._see(tensor.untyped_storage())] = kind

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and look at what it made; `DTensor` first takes its own operations apart."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if func is _VALUE_OF and isinstance(args[0], FakeTensor):
            return 0  # A fake tensor has no value, and what a step tells of itself is not looked at.
        kwargs = kwargs or {}
        if in_backward() != bool(self._stage % 2):
            self._stage += 1
        result = func(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        for tensor in outputs:
            self._see(tensor.untyped_storage())
        if func.namespace == "fsdp" and "all_gather" in func.name():
            self.name(GATHERED, outputs)
        elif func.namespace == "aten" and outputs:
            self._count(func, args, kwargs, result, outputs)
        return result

    def _count(self, func: Any, args: Any, kwargs: Any, result: Any, outputs: list[Tensor]) -> None:
        packet = func.overloadpacket
        if packet in flop_registry:
            self.flops += flop_registry[packet](*args, **kwargs, out_val=result)
        elif packet == _ATTENTION:
            self.flops += sdpa_flop_count(*(tensor.shape for tensor in args[:3]))
        elif packet == _ATTENTION_BACKWARD:
            self.flops += sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4]))
        if not func.is_view and packet not in _FREE:
            inputs = outputs if packet in _ROWS_OF else [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            self.traffic += sum(min(tensor.nbytes, tensor.untyped_storage().nbytes()) for tensor in (*inputs, *outputs))

    def _see(self, storage: Any) -> int:
        """The number of a block of memory; its size is noted when that is news."""
        key = storage_key(storage)
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = len(self._references)
            self._references[block] = weakref.ref(storage, partial(self._freed, key))
            self._sizes[block] = -1
        if self._sizes[block] != storage.nbytes():
            self._sizes[block] = storage.nbytes()
            self.changes.append(Change(block, storage.nbytes(), self._stage))
        return block

    def _freed(self, key: int, _reference: object) -> None:
        block = self._blocks.pop(key)
        self._references[block] = None
        if self._sizes.pop(block):
            self.changes.append(Change(block, 0, self._stage))
