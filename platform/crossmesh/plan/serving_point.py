"""One engine to plan: a model, the chips it is split over and the requests that it answers."""

from dataclasses import dataclass

from crossmesh.hardware.catalogue import Slice
from crossmesh.hardware.chips import Chip
from crossmesh.models.architecture import Architecture
from crossmesh.plan.model import PlannedModel, find_architecture, planned_model
from crossmesh.plan.point import WIDTHS
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.spec.training import AUTO


@dataclass(frozen=True)
class ServingPoint:
    """An engine on the first `tp` chips of a slice, under one length of prompt and answer."""

    model: PlannedModel
    slice: Slice
    tp: int
    dtype: str
    kv_dtype: str
    max_model_len: int
    max_num_seqs: int
    memory_share: float
    """Part of the memory that the engine may fill."""
    prompt: int
    output: int
    requests: int
    """Answered at once; 0: as many as fit."""

    @property
    def architecture(self) -> Architecture:
        """The model's."""
        return self.model.architecture

    @property
    def chip(self) -> Chip:
        """The figures of a chip. Raises `InputError` where there are none."""
        return self.slice.figures

    @property
    def width(self) -> int:
        """Bytes of a weight."""
        return WIDTHS[self.dtype]

    @property
    def kv_width(self) -> int:
        """Bytes of a key or value in the cache."""
        return 1 if self.kv_dtype.startswith("fp8") else WIDTHS[self.kv_dtype]


def serving_point(spec: ExperimentSpec) -> ServingPoint:
    """The engine that `spec` describes. Raises `InputError` where the model's architecture cannot be told."""
    architecture = find_architecture(spec.model, spec.storage.path / "cache")
    dtype = spec.model.dtype if spec.serve.dtype == AUTO else spec.serve.dtype
    return ServingPoint(
        model=planned_model(architecture, ()),
        slice=spec.hardware.slice,
        tp=spec.serve.tp,
        dtype=dtype,
        kv_dtype=dtype if spec.serve.kv_cache_dtype == AUTO else spec.serve.kv_cache_dtype,
        max_model_len=spec.serve.max_model_len,
        max_num_seqs=spec.serve.max_num_seqs,
        memory_share=spec.serve.gpu_memory_utilization,
        prompt=spec.plan.prompt_tokens,
        output=spec.plan.output_tokens,
        requests=spec.plan.requests,
    )
