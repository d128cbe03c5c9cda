"""The seam between the one loop and the two frameworks: step-level only, no loops over steps, no I/O policy, no orchestration."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from crossmesh.data.batches import PackedBatch
from crossmesh.spec.experiment import LoraSpec, MeshSpec, ModelSpec, OptimSpec

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TrainingSetup:
    """What a backend needs to know; plain values, so that it can be sent to a worker."""

    model: ModelSpec
    model_folder: Path
    """Local Hugging Face folder (`models/weights.py`)."""
    lora: LoraSpec
    optim: OptimSpec
    mesh: MeshSpec
    cache: Path
    """Folder for compiled programs."""


@dataclass(frozen=True)
class StepMetrics:
    """What one optimizer step says of itself. `loss` is sum(nll x mask) / sum(mask) over the whole global batch, in nats per token."""

    loss: float
    grad_norm: float
    """Global L2 norm before clipping."""
    learning_rate: float
    loss_tokens: int


class Backend(Protocol):
    """A framework that can take optimizer steps on one adapter."""

    def init(self, setup: TrainingSetup) -> None:
        """Load the base, put the seed's initial LoRA values in, make the optimizer."""
        ...

    def step(self, batch: PackedBatch) -> StepMetrics:
        """Take one optimizer step over all micro-batches of `batch`; blocks until the result is there."""
        ...

    def evaluate(self, batch: PackedBatch) -> StepMetrics:
        """Loss of `batch` without a step (`grad_norm` and `learning_rate` are 0)."""
        ...

    def save_state(self, folder: Path) -> None:
        """Write adapter, optimizer state and step count into an existing empty folder, bit-exact."""
        ...

    def load_state(self, folder: Path) -> None:
        """Continue from what `save_state` wrote."""
        ...

    def export_adapter(self) -> dict[str, FloatArray]:
        """LoRA arrays by PEFT name, e.g. `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` [rank, in]."""
        ...
