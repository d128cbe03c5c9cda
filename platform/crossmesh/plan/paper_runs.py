"""The paper's own training run planned twice: as it was run, and as crossmesh would run it on the same slice, with the forecast calibrated.

The ratio of the paper's measured seconds to the model's for the very same step is the calibration; it is applied to what crossmesh would
do on that slice. It is one number of one run, and holds what the paper's stack wastes too; how well it carries over to another mesh and
another attention kernel is not known.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from itertools import product

from crossmesh.hardware.catalogue import find_slice
from crossmesh.plan.forecast import Forecast, forecast
from crossmesh.plan.paper import GPU, ROW_TOKENS, SEQUENCE, TPU, Training, usd_per_hour
from crossmesh.plan.point import training_point
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.spec.planning import PlanSpec
from crossmesh.spec.training import (
    REMATS,
    BackendSpec,
    BatchSpec,
    DataSpec,
    HardwareSpec,
    LoraSpec,
    MeshSpec,
    ModelSpec,
    OptimSpec,
    PackingSpec,
)

_BATCH = 8
_PLAN = PlanSpec(mean_tokens=ROW_TOKENS, p99_tokens=2553.0, loss_share=0.15, price_max_age_days=10**6)
XLA_STATIC_S = 0.605
"""Seconds of one sample by XLA's static estimate for v5p 2x2x1: compiled ahead of time, micro-batch 1 x 3,072, tp=4, remat by layer."""
PUBLISHED_GPU_TOKENS_PER_S = 2250.0
"""Real tokens/s of one H100 with BF16 LoRA of a 32B model, as published for other stacks."""


@dataclass(frozen=True)
class PaperRun:
    """One way to run the paper's training."""

    label: str
    planned: Forecast
    measured_sample_s: float | None
    """What the paper measured for one sample; None for what it did not run."""
    calibration: float | None
    """Measured, or published, over modelled seconds on this slice."""
    against: Training

    @property
    def sample_s(self) -> float | None:
        """Modelled seconds of one row of the data."""
        rate = self.planned.tokens_per_s
        return ROW_TOKENS / rate if rate else None

    @property
    def tokens_per_s(self) -> float | None:
        """Modelled rate, calibrated."""
        rate = self.planned.tokens_per_s
        return rate / self.calibration if rate and self.calibration else None

    @property
    def usd(self) -> float | None:
        """Price of all rows of the paper's run at the calibrated rate."""
        if not self.tokens_per_s:
            return None
        hours = self.against.samples * ROW_TOKENS / self.tokens_per_s / 3600
        return hours * usd_per_hour(self.against.hardware)

    @property
    def speedup(self) -> float | None:
        """Calibrated rate over the paper's."""
        return self.tokens_per_s / self.against.tokens_per_s if self.tokens_per_s else None


def paper_runs(today: date) -> tuple[PaperRun, ...]:
    """As they ran it and as crossmesh would, on both slices."""
    return (*_on(TPU, today), *_on(GPU, today))


def _on(run: Training, today: date) -> Iterator[PaperRun]:
    # Logits of every position, padding included.
    padded = forecast(replace(training_point(_as_run(run)), loss_share=SEQUENCE / ROW_TOKENS), _PLAN, today)
    modelled = ROW_TOKENS / (padded.tokens_per_s or 1.0)
    calibration = run.sample_s / modelled
    yield PaperRun(f"{run.hardware}, as they ran it", padded, run.sample_s, calibration, run)
    for mode in ("stream", "step"):
        best = _best(run, mode, today)
        if best is not None:
            yield PaperRun(f"{run.hardware}, packing={mode}", best, None, calibration, run)
    if run is GPU and (again := _best(run, "stream", today, ("layer",))) is not None:
        chips = again.point.slice.device.chip_count()
        published = (again.tokens_per_s or 0.0) / (chips * PUBLISHED_GPU_TOKENS_PER_S)
        yield PaperRun(f"{run.hardware}, packing=stream, remat=layer, at published rates", again, None, published, run)


def _spec(run: Training, mode: str, mesh: MeshSpec, micro: int, backend: BackendSpec) -> ExperimentSpec:
    """The paper's model, adapter, rows and batch."""
    return ExperimentSpec(
        model=ModelSpec(family="gemma4", weights="hf://google/gemma-4-31b-it", dtype="bfloat16"),
        data=DataSpec(max_length=SEQUENCE),
        lora=LoraSpec(rank=64, alpha=64.0),
        packing=PackingSpec(mode=mode),
        batch=BatchSpec(_BATCH, micro),
        hardware=HardwareSpec(run.hardware),
        mesh=mesh,
        backend=backend,
        optim=OptimSpec(steps=run.samples // _BATCH),
        plan=_PLAN,
    )


def _as_run(run: Training) -> ExperimentSpec:
    """Rows padded, layers made again, full masks; tensor parallel on TPU, sharded on GPU."""
    on_tpu = run is TPU
    mesh = MeshSpec(fsdp=1, tp=4) if on_tpu else MeshSpec(fsdp=2, tp=1)
    backend = BackendSpec(remat="layer", attention="plain" if on_tpu else "sdpa")
    return _spec(run, "none", mesh, 1, backend)


def _best(run: Training, mode: str, today: date, remats: tuple[str, ...] = REMATS) -> Forecast | None:
    """The fastest that fits over mesh, micro-batch, remat and the kernels of the slice, at the paper's sequence length."""
    chips = find_slice(run.hardware).device.chip_count()
    kernels = ("splash",) if run is TPU else ("sdpa", "flex")
    fitting = []
    for tp, micro, remat, kernel in product((size for size in (1, 2, 4) if chips % size == 0), (1, 2, 4), remats, kernels):
        if _BATCH % (micro * chips // tp):
            continue
        spec = _spec(run, mode, MeshSpec(fsdp=chips // tp, tp=tp), micro, BackendSpec(remat=remat, attention=kernel))
        planned = forecast(training_point(spec), _PLAN, today)
        if planned.fits:
            fitting.append(planned)
    return max(fitting, key=lambda one: one.tokens_per_s or 0.0, default=None)
