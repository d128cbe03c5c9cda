"""A plan as plain values: what the table shows, what JSON and CSV hold. One form for training runs and engines."""

from dataclasses import asdict, dataclass, field
from typing import Any

from crossmesh.hardware.chips import Price
from crossmesh.plan.training.forecast import Forecast, usable_training_bytes
from crossmesh.track.tracked_run import TAG_HBM_SOURCE, TAG_STEP_SOURCE


@dataclass(frozen=True)
class PlanRecord:
    """One point of a plan. What does not apply or is not known is None."""

    label: str
    """What sets it apart from the other points of its sweep."""
    swept: dict[str, str] = field(default_factory=dict)
    """The same by key."""
    workload: str = ""
    hardware: str = ""
    chips: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    fits: bool = False
    hbm_bytes_per_chip: float | None = None
    hbm_available_bytes: float | None = None
    hbm_source: str | None = None
    memory: dict[str, float] = field(default_factory=dict)
    """Bytes per chip by kind."""
    step_seconds: float | None = None
    """An optimizer step; of an engine, one token of every sequence of its batch."""
    step_source: str | None = None
    step_seconds_bound: float | None = None
    """No program does it faster; of an engine, the first token of a prompt."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds of a step by phase."""
    tokens_per_s: float | None = None
    mfu: float | None = None
    hours: float | None = None
    usd: float | None = None
    usd_per_million_tokens: float | None = None
    limiter: str | None = None
    rejected_because: str | None = None
    nearest: str | None = None
    """Overrides of the nearest point that fits."""
    price: dict[str, Any] | None = None
    unit_prices: dict[str, float] | None = None
    """USD per hour and TFLOP/s, TB/s, GiB."""
    serving: dict[str, float] | None = None
    compiled: dict[str, Any] | None = None
    """What a compiler or a trace says of one micro-batch on one chip (`plan.figures.Compiled`)."""
    agreement: dict[str, float | None] | None = None
    """The model's memory, FLOP and seconds over the compiler's."""
    calibration: dict[str, Any] | None = None
    """What own runs measured over the model's step time; the factor is in `step_seconds`."""
    stages: dict[str, Any] | None = None
    """Hours by stage with their sources, and how many interruptions are expected (`plan.interruptions.Stages`)."""
    warnings: tuple[str, ...] = ()
    pareto: bool = False
    """No other point of the sweep beats it in both time and price of a token."""

    def json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def training_record(label: str, planned: Forecast) -> PlanRecord:
    """The record of a training run."""
    point, figures = planned.point, planned.figures
    return PlanRecord(
        label=label,
        workload="train",
        hardware=point.slice.name,
        chips=point.mesh.devices,
        settings={
            "backend": point.backend,
            "mesh": {"dcn": point.mesh.dcn, "data": point.mesh.data, "fsdp": point.mesh.fsdp, "tp": point.mesh.tp},
            "batch": point.batch,
            "micro": point.micro,
            "sequence_length": point.length,
            "remat": point.remat,
            "attention": point.attention,
            "sequences_per_step": point.filling.sequences,
            "real_tokens_per_step": point.filling.tokens,
            "computed_tokens_per_step": point.filling.computed,
            "steps": point.steps,
        },
        fits=planned.fits,
        hbm_bytes_per_chip=figures.hbm_bytes if figures else None,
        hbm_available_bytes=usable_training_bytes(point),
        hbm_source=figures.hbm_source if figures else None,
        memory=figures.memory if figures else {},
        step_seconds=figures.step_s if figures else None,
        step_source=figures.step_source if figures else None,
        step_seconds_bound=figures.bound_s if figures else None,
        phases=figures.phases if figures else {},
        tokens_per_s=planned.tokens_per_s,
        mfu=planned.mfu,
        hours=planned.hours,
        usd=planned.usd,
        usd_per_million_tokens=planned.usd_per_million_tokens,
        limiter=figures.limiter if figures else None,
        rejected_because=" ".join(planned.reasons) or None,
        nearest=planned.nearest or None,
        price=price_json(planned.price),
        unit_prices=asdict(planned.unit) if planned.unit else None,
        compiled=asdict(figures.compiled) if figures and figures.compiled else None,
        agreement=asdict(figures.agreement) if figures and figures.agreement else None,
        calibration=asdict(planned.calibration) if planned.calibration else None,
        stages=asdict(planned.stages) if planned.stages else None,
        warnings=planned.warnings,
    )


def price_json(price: Price | None) -> dict[str, Any] | None:
    """A price as plain values."""
    if price is None:
        return None
    return {**asdict(price), "read": price.read.isoformat() if price.read else None}


_METRICS = (
    "hbm_bytes_per_chip",
    "hbm_available_bytes",
    "step_seconds",
    "step_seconds_bound",
    "tokens_per_s",
    "mfu",
    "hours",
    "usd",
    "usd_per_million_tokens",
)


def plan_metrics(one: PlanRecord) -> dict[str, float]:
    """The figures of a plan as metrics of a run; what is not known is left out."""
    values = {f"plan/{name}": getattr(one, name) for name in _METRICS}
    serving = {f"plan/{name}": value for name, value in (one.serving or {}).items()}
    return {name: float(value) for name, value in {**values, **serving}.items() if value is not None} | {"plan/fits": float(one.fits)}


def plan_sources(one: PlanRecord) -> dict[str, str]:
    """Whether time and memory of `plan_metrics` are modelled or compiled, as tags of the run."""
    sources = {TAG_STEP_SOURCE: one.step_source, TAG_HBM_SOURCE: one.hbm_source}
    return {tag: source for tag, source in sources.items() if source}
