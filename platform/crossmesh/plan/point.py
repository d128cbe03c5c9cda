"""One point of a sweep: everything that its fit, time and price depend on, taken from a spec."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import ModelSpec
from crossmesh.hardware.catalogue import Slice
from crossmesh.hardware.chips import Chip
from crossmesh.hardware.devices import Tpu
from crossmesh.hardware.mesh import MeshShape
from crossmesh.models.architecture import Architecture
from crossmesh.models.lora import LoraModule, lora_modules
from crossmesh.plan.model import PlannedModel, find_architecture, planned_model
from crossmesh.plan.training.lengths import Filling, filling

WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a value."""
_FLOAT32_PASSES = 6
"""Products in bfloat16 of which a TPU makes one in float32, at the precision that training asks for (JAX's BF16_BF16_F32_X6)."""


@dataclass(frozen=True)
class TrainingPoint:
    """A training run on a slice."""

    model: PlannedModel
    spec: ModelSpec
    slice: Slice
    backend: str
    mesh: MeshShape
    batch: int
    """`batch.size`."""
    micro: int
    length: int
    """Most tokens of a sequence: memory must hold a micro-batch of it; `filling` says how long they are."""
    remat: str
    attention: str
    packed: bool
    steps: int
    filling: Filling
    loss_share: float
    """Part of the real tokens that carries loss."""
    dropout: bool = False
    """Whether the adapter has dropout."""
    clip: bool = True
    """Whether gradients are clipped."""
    checkpoint_steps: int = 10
    """`checkpoint.every_steps`; and `every_minutes`, 0: never by time."""
    checkpoint_minutes: float = 0.0

    @property
    def chip(self) -> Chip:
        """The figures of a chip of the slice. Raises `InputError` where there are none."""
        return self.slice.figures

    @property
    def width(self) -> int:
        """Bytes of a value in the compute precision."""
        return WIDTHS[self.spec.dtype]

    @property
    def peak(self) -> float:
        """Peak FLOP/s of a chip in the compute precision; 0 where it is not known."""
        if self.spec.dtype == "float32" and isinstance(self.slice.device, Tpu):
            return self.chip.bfloat16 / _FLOAT32_PASSES
        return self.chip.peak(self.spec.dtype) or 0.0

    @property
    def at_full_length(self) -> "TrainingPoint":
        """The same with every sequence padded to `length`."""
        return replace(self, filling=replace(self.filling, widths=((self.length, 1.0),)))

    @property
    def micro_steps(self) -> float:
        """Micro-batches of an optimizer step, on average."""
        return self.filling.sequences / (self.micro * self.mesh.dp_size)


def training_point(
    spec: ExperimentSpec, architecture: Architecture | None = None, modules: tuple[LoraModule, ...] | None = None, rows: Sequence[int] = ()
) -> TrainingPoint:
    """The training run that `spec` describes. Raises `InputError` where the model's architecture cannot be told.

    Args:
        spec: the experiment.
        architecture: the model's, where it is known already.
        modules: what LoRA adapts, where it is not what `spec.lora` says.
        rows: tokens of the rows, where the data is there; otherwise `spec.plan` says how long they are.
    """
    architecture = architecture or find_architecture(spec.model, spec.storage.path / "cache")
    model = planned_model(architecture, lora_modules(spec.lora, architecture) if modules is None else modules)
    return TrainingPoint(
        model=model,
        spec=spec.model,
        slice=spec.hardware.slice,
        backend=spec.backend_name,
        mesh=spec.mesh_shape,
        batch=spec.batch.size,
        micro=spec.micro_batch,
        length=spec.sequence_length,
        remat=spec.backend.remat,
        attention=spec.attention,
        packed=spec.packing.mode != "none",
        steps=spec.optim.last_step,
        filling=filling(spec, model.windows, rows),
        loss_share=spec.plan.loss_share,
        dropout=bool(spec.lora.dropout),
        clip=bool(spec.optim.clip_norm),
        checkpoint_steps=spec.checkpoint.every_steps,
        checkpoint_minutes=spec.checkpoint.every_minutes,
    )
