"""The paper's own training run planned twice: as it was run, and as crossmesh would run it on the same slice, with the forecast calibrated.

The ratio of the paper's measured seconds to the model's for the very same step is the calibration; it is applied to what crossmesh would
do on that slice. It holds the inefficiencies of the paper's stack too, so that a calibrated forecast is a cautious one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date

from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.mesh import MeshShape
from crossmesh.models.families import parse_architecture
from crossmesh.models.lora import lora_modules
from crossmesh.models.random_weights import architecture_config
from crossmesh.plan.forecast import Forecast, forecast
from crossmesh.plan.lengths import Filling, filling
from crossmesh.plan.model import PlannedModel, planned_model
from crossmesh.plan.paper import GPU, ROW_TOKENS, SEQUENCE, TPU, Training, usd_per_hour
from crossmesh.plan.point import Point
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.spec.planning import PlanSpec
from crossmesh.spec.training import REMATS, BatchSpec, DataSpec, HardwareSpec, LoraSpec, MeshSpec, ModelSpec, OptimSpec, PackingSpec

_P99, _LOSS_SHARE, _BATCH = 2553.0, 0.15, 8
_MODEL = ModelSpec(family="gemma4", weights="hf://google/gemma-4-31b-it", dtype="bfloat16")
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
    model = _model()
    plan = PlanSpec(mean_tokens=ROW_TOKENS, p99_tokens=_P99, loss_share=_LOSS_SHARE, price_max_age_days=10**6)
    padded = forecast(_as_run(run, model, plan), plan, today)
    modelled = ROW_TOKENS / (padded.tokens_per_s or 1.0)
    calibration = run.sample_s / modelled
    yield PaperRun(f"{run.hardware}, as they ran it", padded, run.sample_s, calibration, run)
    for mode in ("stream", "step"):
        best = _best(run, model, plan, mode, today)
        if best is not None:
            yield PaperRun(f"{run.hardware}, packing={mode}", best, None, calibration, run)
    if run is GPU and (again := _best(run, model, plan, "stream", today, ("layer",))) is not None:
        chips = again.point.slice.device.chip_count()
        published = (again.tokens_per_s or 0.0) / (chips * PUBLISHED_GPU_TOKENS_PER_S)
        yield PaperRun(f"{run.hardware}, packing=stream, remat=layer, at published rates", again, None, published, run)


def _model() -> PlannedModel:
    architecture = parse_architecture(architecture_config("gemma4_31b"), "gemma4_31b.json")
    return planned_model(architecture, lora_modules(LoraSpec(rank=64, alpha=64.0), architecture))


def _as_run(run: Training, model: PlannedModel, plan: PlanSpec) -> Point:
    """Rows padded, layers made again, logits of every position, full masks; tensor parallel on TPU, sharded on GPU."""
    on_tpu = run is TPU
    point = _point(run, model, plan, "none")
    return replace(
        point,
        mesh=MeshShape(1, 1, 4) if on_tpu else MeshShape(1, 2, 1),
        micro=1,
        remat="layer",
        attention="plain" if on_tpu else "sdpa",
        loss_share=SEQUENCE / ROW_TOKENS,
    )


def _point(run: Training, model: PlannedModel, plan: PlanSpec, mode: str) -> Point:
    spec = ExperimentSpec(
        model=_MODEL,
        data=DataSpec(max_length=SEQUENCE),
        packing=PackingSpec(mode=mode),
        batch=BatchSpec(_BATCH, 1),
        hardware=HardwareSpec(run.hardware),
        mesh=MeshSpec(fsdp=1, tp=-1),
        optim=OptimSpec(steps=run.samples // _BATCH),
        plan=plan,
    )
    return Point(
        model=model,
        spec=_MODEL,
        slice=find_slice(run.hardware),
        backend=spec.backend_name,
        mesh=spec.mesh_shape,
        batch=_BATCH,
        micro=1,
        length=SEQUENCE,
        remat="none",
        attention=spec.attention,
        packed=mode != "none",
        steps=run.samples // _BATCH,
        filling=filling(spec, model.windows),
        loss_share=_LOSS_SHARE,
    )


def _best(run: Training, model: PlannedModel, plan: PlanSpec, mode: str, today: date, remats: tuple[str, ...] = REMATS) -> Forecast | None:
    """The fastest that fits over mesh, micro-batch, remat and the kernels of the slice, at the paper's sequence length."""
    base = _point(run, model, plan, mode)
    chips = base.slice.device.chip_count()
    fitting = []
    for tp in (size for size in (1, 2, 4) if chips % size == 0):
        for micro in (1, 2, 4):
            for remat in remats:
                for attention in ("splash",) if run is TPU else ("flash", "flex"):
                    point = replace(base, mesh=MeshShape(1, chips // tp, tp), micro=micro, remat=remat, attention=attention)
                    point = replace(point, filling=_filled(point, plan, mode))
                    planned = forecast(point, plan, today)
                    if planned.fits:
                        fitting.append(planned)
    return max(fitting, key=lambda one: one.tokens_per_s or 0.0, default=None)


def _filled(point: Point, plan: PlanSpec, mode: str) -> Filling:
    """The filling of `point`: sequences of a step are filled up to whole micro-batches over its mesh."""
    if point.batch % (point.micro * point.mesh.batch_ways):
        return point.filling
    mesh = MeshSpec(fsdp=point.mesh.fsdp, tp=point.mesh.tp)
    spec = ExperimentSpec(
        model=_MODEL,
        data=DataSpec(max_length=point.length),
        packing=PackingSpec(mode=mode),
        batch=BatchSpec(point.batch, point.micro),
        hardware=HardwareSpec(point.slice.name),
        mesh=mesh,
        plan=plan,
    )
    return filling(spec, point.model.windows)
