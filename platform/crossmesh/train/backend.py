"""The seam between the one loop and the two frameworks: step-level only, no loops over steps, no I/O policy, no orchestration."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.objective import ObjectiveSpec
from crossmesh.config.training import LoraSpec, ModelSpec, OptimSpec
from crossmesh.data.batches import PackedBatch
from crossmesh.errors import CrossmeshError
from crossmesh.hardware.mesh import MeshShape
from crossmesh.objectives.objective import Objective

FloatArray = npt.NDArray[np.float32]

Saving = Callable[[], None]
"""Waits for a save that runs in the background; raises what it failed of. On rank 0 it returns when the files of all ranks are there."""


def loss_rows(*, on_cpu: bool) -> int:
    """Rows of logits that a loss head makes at once.

    Few on a CPU, where a block is all that is wasted; many on an accelerator, where each block reads the vocabulary from HBM.
    """
    return 128 if on_cpu else 1024


def step_weight(objective: Objective, batch: PackedBatch) -> float:
    """What the summed loss of `batch` is divided by. Raises `CrossmeshError` when there is nothing to learn in it."""
    weight = objective.weight(batch)
    if not weight > 0:
        raise CrossmeshError("A batch has no token that carries loss. Check data.max_length and that rows have assistant turns.")
    return weight


@dataclass(frozen=True)
class TrainingSetup:
    """What a backend needs to know; plain values, so that it can be sent to a worker."""

    model: ModelSpec
    model_folder: Path
    """Local Hugging Face folder (`models/weights/fetch.py`)."""
    lora: LoraSpec
    optim: OptimSpec
    mesh: MeshShape
    """Over the devices of all processes."""
    accumulation: int
    """Most micro-batches that a step has."""
    remat: str
    """`none`, `layer` or `dots` (`BackendSpec.remat`)."""
    compile: str
    """`none` or `layer` (`BackendSpec.compile`)."""
    attention: str
    """Kernel, `auto` resolved (`ExperimentSpec.attention`)."""
    cache: Path
    """Folder for compiled programs."""
    init_adapter: Path | None = None
    """Folder of the PEFT adapter that training continues from; None starts from the seed."""
    objective: ObjectiveSpec = field(default_factory=ObjectiveSpec)

    @classmethod
    def of(cls, spec: ExperimentSpec, model_folder: Path, cache: Path, init_adapter: Path | None = None) -> "TrainingSetup":
        """What a backend needs of `spec`; `init_adapter` is the folder of `lora.adapter`."""
        if bool(spec.lora.adapter) != (init_adapter is not None):
            raise ValueError(f"lora.adapter={spec.lora.adapter!r}, but the adapter to start from is {init_adapter}")
        return cls(
            model=spec.model,
            model_folder=model_folder,
            lora=spec.lora,
            optim=spec.optim,
            mesh=spec.mesh_shape,
            accumulation=spec.accumulation,
            remat=spec.backend.remat,
            compile=spec.backend.compile,
            attention=spec.attention,
            cache=cache,
            init_adapter=init_adapter,
            objective=spec.objective,
        )


@dataclass(frozen=True)
class StepMetrics:
    """What one optimizer step says of itself, over the whole global batch."""

    loss: float
    """What the objective minimizes; of `sft` sum(nll x mask) / sum(mask), in nats per token."""
    grad_norm: float
    """Global L2 norm before clipping."""
    learning_rate: float
    loss_tokens: int
    objective: Mapping[str, float] = field(default_factory=dict)
    """What the objective says beside its loss (`Objective.metrics`)."""


class Backend(Protocol):
    """A framework that can take optimizer steps on one model. Every method is called by all processes of the run, in the same order."""

    rank: int
    """Of this process; 0 leads. Set by `init`."""

    def init(self, setup: TrainingSetup) -> None:
        """Load the base, put in the LoRA values to start from, make the optimizer."""
        ...

    def step(self, batch: PackedBatch) -> StepMetrics:
        """Take one optimizer step over all micro-batches of `batch`, the global one; blocks until the result is there."""
        ...

    def evaluate(self, batch: PackedBatch) -> StepMetrics:
        """Loss of `batch` without a step (`grad_norm` and `learning_rate` are 0)."""
        ...

    def agree(self, flag: bool) -> bool:
        """Whether `flag` is True in any process; the same answer in all."""
        ...

    def save_state(self, folder: Path) -> Saving:
        """Start writing trained arrays, optimizer state and step count into an existing empty folder, bit-exact.

        The state is copied before it returns, so that the next step may follow at once; files are written in the background.
        """
        ...

    def load_state(self, folder: Path) -> None:
        """Continue from what `save_state` wrote, also on another mesh or number of processes."""
        ...

    def export(self) -> dict[str, FloatArray]:
        """Trained arrays, whole, float32, on the host.

        LoRA arrays by PEFT name, e.g. `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` [rank, in]; with `lora.rank=0` all
        weights by the names of the Hugging Face checkpoint.
        """
        ...
