"""LoRA on vLLM's CPU engine by the products of `lora_torch.py`, for `worker_cls`. Imported by the engine's worker only.

vLLM 0.32 computes `y += x A^T B^T` on a CPU by first copying the adapter's A and B once for every token, which makes a prefill six times
slower than the base model's, and it gives tokens without an adapter (slot -1) the last slot's weights.
"""

from typing import Any

import torch
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.v1.worker.cpu_worker import CPUWorker

from crossmesh.compat.vllm_server import use_lora_kernels
from crossmesh.serve.vllm.lora_torch import LoraBatch, by_rank


class GroupedPunica(PunicaWrapperCPU):
    """vLLM's interface to LoRA kernels, with the two products of a linear layer grouped by adapter."""

    _batch = LoraBatch((), None)

    def update_metadata(self, *args: Any, **kwargs: Any) -> None:
        """Take over which token belongs to which adapter for the next forward passes: until tokens or slots change."""
        super().update_metadata(*args, **kwargs)
        self._batch = LoraBatch.of(self.token_lora_indices)

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
        """Add each token's LoRA to `y` in place (`LoraBatch.add`)."""
        self._batch.add(y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1]), lora_a_stacked, lora_b_stacked, scale, output_slices)


class Worker(CPUWorker):
    """vLLM's CPU worker with `GroupedPunica` as its LoRA kernels."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load the model; its LoRA layers ask the platform for their kernels, which this worker's process then gets from here."""
        use_lora_kernels(GroupedPunica)
        super().load_model(*args, **kwargs)
        for layer in self.model_runner.model.modules():
            if isinstance(layer, BaseLinearLayerWithLoRA):
                layer.lora_b_stacked = tuple(by_rank(stack) for stack in layer.lora_b_stacked)
