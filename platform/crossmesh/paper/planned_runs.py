"""The paper's own training run planned twice: as it was run, and as crossmesh would run it on the same slice.

Every figure is the plan's own: what `crossmesh plan` says of the same run on the same machine, calibrated by own runs or by nothing. What
the paper measured, over what the model says of that step, stands beside it and multiplies nothing: it is one run, of another stack.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import (
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
from crossmesh.hardware.catalogue import find_slice
from crossmesh.paper.figures import GPU, ROW_TOKENS, SEQUENCE, TPU, PaperTraining
from crossmesh.plan.planner import Planner
from crossmesh.plan.point import training_point
from crossmesh.plan.training.forecast import Forecast
from crossmesh.plan.training.interruptions import HOUR

_BATCH = 8
ROWS = 10_000
"""Rows that are trained on, each once, whichever way: the paper's data set."""
XLA_STATIC_S = 0.605
"""Seconds of one sample by XLA's static estimate for v5p 2x2x1: compiled ahead of time, micro-batch 1 x 3,072, tp=4, remat by layer."""
PUBLISHED_GPU_TOKENS_PER_S = 2250.0
"""Real tokens/s of one H100 with BF16 LoRA of a 32B model, as published for other stacks."""


@dataclass(frozen=True)
class PaperRun:
    """One way to run the paper's training."""

    label: str
    planned: Forecast
    """Of all `ROWS`: its rate, hours and USD are the run's."""
    against: PaperTraining
    as_run: Forecast
    """The same slice's run as the paper ran it."""
    measured_sample_s: float | None = None
    """What the paper measured for one sample; None for what it did not run."""
    ratio: float | None = None
    """Measured, or published, over modelled seconds; nothing is multiplied by it."""

    @property
    def sample_s(self) -> float | None:
        """Planned seconds of one row of the data."""
        return _sample_s(self.planned)

    @property
    def speedup(self) -> float | None:
        """Planned rate over the planned rate of what they ran: like with like."""
        rate, theirs = self.planned.tokens_per_s, self.as_run.tokens_per_s
        return rate / theirs if rate and theirs else None


def paper_runs(planner: Planner) -> tuple[PaperRun, ...]:
    """As they ran it and as crossmesh would, on both slices, at the prices of `planner` and with no budget."""
    plan = replace(planner.plan, workload="train", mean_tokens=ROW_TOKENS, p99_tokens=2553.0, loss_share=0.15, max_usd=0.0, max_hours=0.0)
    return tuple(run for training in (TPU, GPU) for run in _on(training, replace(planner, plan=plan)))


def _on(run: PaperTraining, planner: Planner) -> Iterator[PaperRun]:
    # Logits of every position, padding included.
    padded = planner.planned(replace(training_point(_as_run(run, planner)).at_full_length, loss_share=SEQUENCE / ROW_TOKENS))
    ratio = run.sample_s / (_sample_s(padded) or math.inf)
    yield PaperRun(f"{run.hardware}, as they ran it", padded, run, padded, run.sample_s, ratio)
    for mode in ("stream", "step"):
        best = _best(run, mode, planner)
        if best is not None:
            yield PaperRun(f"{run.hardware}, packing={mode}", best, run, padded)
    if run is GPU and (again := _best(run, "stream", planner, ("layer",))) is not None:
        chips = again.point.slice.device.chip_count()
        published = (again.tokens_per_s or 0.0) / (chips * PUBLISHED_GPU_TOKENS_PER_S)
        yield PaperRun(f"{run.hardware}, packing=stream, remat=layer", again, run, padded, ratio=published)


def _sample_s(planned: Forecast) -> float | None:
    return planned.hours * HOUR / ROWS if planned.hours else None


def _spec(run: PaperTraining, mode: str, mesh: MeshSpec, micro: int, backend: BackendSpec, planner: Planner) -> ExperimentSpec:
    """The paper's model, adapter, rows and batch; as many steps as all rows take."""
    spec = ExperimentSpec(
        model=ModelSpec(family="gemma4", weights="hf://google/gemma-4-31b-it", dtype="bfloat16"),
        data=DataSpec(max_length=SEQUENCE),
        lora=LoraSpec(rank=64, alpha=64.0, dropout=0.05),
        packing=PackingSpec(mode=mode),
        batch=BatchSpec(_BATCH, micro),
        hardware=HardwareSpec(run.hardware),
        mesh=mesh,
        backend=backend,
        optim=OptimSpec(steps=ROWS // _BATCH),
        plan=planner.plan,
    )
    if mode != "stream":
        return spec
    filling = training_point(spec).filling  # Its steps hold as many rows as their sequences have room for.
    return replace(spec, optim=OptimSpec(steps=math.ceil(ROWS * filling.row_tokens / filling.tokens)))


def _as_run(run: PaperTraining, planner: Planner) -> ExperimentSpec:
    """Rows padded, layers made again, full masks; tensor parallel on TPU, sharded on GPU."""
    on_tpu = run is TPU
    mesh = MeshSpec(fsdp=1, tp=4) if on_tpu else MeshSpec(fsdp=2, tp=1)
    backend = BackendSpec(remat="layer", attention="plain" if on_tpu else "sdpa")
    return _spec(run, "none", mesh, 1, backend, planner)


def _best(run: PaperTraining, mode: str, planner: Planner, remats: tuple[str, ...] = REMATS) -> Forecast | None:
    """The fastest that fits over mesh, micro-batch, remat and the kernels of the slice, at the paper's sequence length."""
    chips = find_slice(run.hardware).device.chip_count()
    kernels = ("splash",) if run is TPU else ("sdpa", "flex")
    fitting = []
    for tp, micro, remat, kernel in product((size for size in (1, 2, 4) if chips % size == 0), (1, 2, 4), remats, kernels):
        if _BATCH % (micro * chips // tp):
            continue
        spec = _spec(run, mode, MeshSpec(fsdp=chips // tp, tp=tp), micro, BackendSpec(remat=remat, attention=kernel), planner)
        planned = planner.planned(training_point(spec))
        if planned.fits:
            fitting.append(planned)
    return max(fitting, key=lambda one: one.tokens_per_s or 0.0, default=None)
