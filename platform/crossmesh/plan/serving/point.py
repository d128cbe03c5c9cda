"""One engine to plan: a model, the chips it is split over and the requests that it answers."""

from dataclasses import dataclass

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import AUTO
from crossmesh.errors import InputError
from crossmesh.hardware.catalogue import Slice
from crossmesh.hardware.chips import Chip
from crossmesh.hardware.devices import Cpu, Gpu, Tpu
from crossmesh.models.architecture import Architecture
from crossmesh.plan.model import PlannedModel, find_architecture, planned_model
from crossmesh.plan.point import WIDTHS

_GIB = 1 << 30
_TPU_STEP_TOKENS = 2048
"""vLLM has figures for "V6E", "V5E" and "V5P", but tpu-inference 0.32.0 names chips otherwise ("TPU v6e") and does not tell their memory:
every TPU gets the default of a device of unknown memory (`tests/integration/test_tpu_wheel.py`)."""
_TPU_CHIPS = ("v4", "v5e", "v5p", "v6e", "v7x")
"""Those that tpu-inference has been read for."""


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
    step_tokens: int
    """Tokens that one step computes at most."""

    @property
    def architecture(self) -> Architecture:
        """The model's."""
        return self.model.architecture

    @property
    def chip(self) -> Chip:
        """The figures of a chip. Raises `InputError` where there are none."""
        return self.slice.figures

    @property
    def peak(self) -> float:
        """Peak FLOP/s of a chip in the engine's dtype; that of bfloat16 where it is not published."""
        return self.chip.peak(self.dtype) or self.chip.bfloat16

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
        step_tokens=spec.serve.max_num_batched_tokens or default_step_tokens(spec),
    )


def default_step_tokens(spec: ExperimentSpec) -> int:
    """What vLLM 0.32 sets `max_num_batched_tokens` to for a server (`EngineArgs.get_batch_defaults`), at most all sequences in full.

    Raises `InputError` for a TPU of which that is not known.
    """
    device, most = spec.hardware.slice.device, spec.serve.max_num_seqs * spec.serve.max_model_len
    match device:
        case Cpu():
            return min(2048 * spec.serve.tp, most)
        case Tpu():
            if device.chip not in _TPU_CHIPS:
                raise InputError(
                    f"serve.max_num_batched_tokens=0 on {device.chip}: what the engine computes in one step there is not known. Known: "
                    f"{', '.join(_TPU_CHIPS)}. Set serve.max_num_batched_tokens."
                )
            return min(_TPU_STEP_TOKENS, most)
        case Gpu():
            memory = spec.hardware.slice.figures.hbm_bytes
            if memory >= 160 * _GIB:
                return min(16384, most)
            return min(8192 if memory >= 70 * _GIB and "a100" not in device.chip else 2048, most)
