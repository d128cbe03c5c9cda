"""LoRA on vLLM's CPU engine as matrix products per adapter, for `worker_cls`. Imported by the engine's worker only.

vLLM 0.32 computes `y += x A^T B^T` on a CPU by first copying the adapter's A and B once for every token, which makes a prefill six times
slower than the base model's, and it gives tokens without an adapter (slot -1) the last slot's weights. Here the tokens of one adapter are
multiplied at once, and tokens without one are left alone.
"""

from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms import current_platform
from vllm.v1.worker.cpu_worker import CPUWorker


class GroupedPunica(PunicaWrapperCPU):
    """vLLM's interface to LoRA kernels, with the two products of a linear layer grouped by adapter."""

    _groups: tuple[tuple[int, torch.Tensor | None], ...] = ()
    """Slot of each adapter in the batch and the rows of its tokens; None: all rows."""

    def update_metadata(self, *args: Any, **kwargs: Any) -> None:
        """Take over which token belongs to which adapter for the next forward pass."""
        super().update_metadata(*args, **kwargs)
        slots = self.token_lora_indices
        present = [slot for slot in torch.unique(slots).tolist() if slot >= 0]
        whole = len(present) == 1 and bool((slots == present[0]).all())
        self._groups = tuple((slot, None if whole else torch.nonzero(slots == slot).flatten()) for slot in present)

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        **_: Any,
    ) -> None:
        """Add `scale x A^T B^T` to `y` in place, slice by slice.

        `y` [tokens, sum(output_slices)], `x` [tokens, in], A per slice [slots, 1, rank, in], B per slice [slots, 1, out, rank].
        """
        y = y.view(-1, y.shape[-1])
        x = x.view(-1, x.shape[-1])
        for slot, rows in self._groups:
            inputs = x if rows is None else x[rows]
            start = 0
            for a, b, size in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
                shrunk = inputs @ a[slot, 0].T
                part = y[:, start : start + size]
                if rows is None:
                    part.addmm_(shrunk, b[slot, 0].T, alpha=scale)
                else:
                    part.index_add_(0, rows, shrunk @ b[slot, 0].T, alpha=scale)
                start += size


class Worker(CPUWorker):
    """vLLM's CPU worker with `GroupedPunica` as its LoRA kernels."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load the model; its LoRA layers ask the platform for their kernels, which this worker's process then gets from here."""
        current_platform.get_punica_wrapper = lambda: f"{GroupedPunica.__module__}.{GroupedPunica.__qualname__}"
        super().load_model(*args, **kwargs)
