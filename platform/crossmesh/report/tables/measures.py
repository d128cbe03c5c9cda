"""What a training run measured of itself, and what its plan said before: one entry a quantity."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from crossmesh.evaluate.estimates import FEWEST_RUNS, Estimate, rate_of_runs
from crossmesh.metrics import (
    ADAPTER_SIZE,
    ENERGY,
    FINAL_LOSS,
    LOSS_TOKENS,
    MFU,
    PADDED_TOKENS_PER_S,
    PLANNED_HBM,
    PLANNED_TOKENS_PER_S,
    SECONDS_PER_SAMPLE,
    TOKENS,
    TOKENS_PER_S,
    WALL_CLOCK,
    Metric,
    added_metrics,
)
from crossmesh.report.tables.cells import TableCell, missing
from crossmesh.report.tables.quantity import NOT_TRAINED, TRAINING, Quantity
from crossmesh.report.units import number_text
from crossmesh.report.variants import Results, TrainingSummary, Variant

EMULATED = "emulated on CPU devices"
"""What stands where a time or a rate of an emulated run would say nothing."""
_OF_THE_HARDWARE = (MFU.name, ENERGY.name)
_COUNTS = (TOKENS.name, LOSS_TOKENS.name, ADAPTER_SIZE.name)
"""Measures that are no time and no rate."""


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _tenth(value: float) -> str:
    return f"{value:,.1f}"


@dataclass(frozen=True)
class Measure:
    """How a metric is taken from a run that was trained, and how it is shown."""

    metric: Metric
    of: Callable[[Variant, TrainingSummary], Estimate | None]
    why: str = "not recorded by this run"
    """What stands where there is none."""
    form: Callable[[float], str] = number_text
    optional: bool = False
    """Left out when no run has it."""

    @property
    def key(self) -> str:
        """Name of the metric."""
        return self.metric.name


def _speed(variant: Variant, training: TrainingSummary) -> Estimate | None:
    """Of repeats that ran without load, where there are enough; else of the run itself, whose steps say nothing of other runs."""
    sound = [one.tokens_per_s for one in variant.repeats if not one.load]
    if len(sound) >= FEWEST_RUNS:
        return rate_of_runs(sound)
    return Estimate(training.tokens_per_s) if training.tokens_per_s else None


def _sample(variant: Variant, training: TrainingSummary) -> Estimate | None:
    return Estimate(training.seconds / variant.rows) if variant.rows else None


def _maybe(value: float | None, scale: float = 1.0) -> Estimate | None:
    return None if value is None else Estimate(scale * value)


def _planned(metric: Metric, form: Callable[[float], str] = number_text) -> Measure:
    return Measure(metric, lambda v, _: _maybe(v.planned.get(metric.name, (None,))[0]), "not planned", form, optional=True)


MEASURES = (
    Measure(WALL_CLOCK, lambda _, training: Estimate(training.seconds)),
    Measure(TOKENS_PER_S, _speed, "not measured: no steady step on all slices of its mesh"),
    Measure(PADDED_TOKENS_PER_S, lambda _, training: _maybe(training.padded_tokens_per_s)),
    Measure(MFU, lambda _, training: _maybe(training.mfu, MFU.scale), "the catalogue has no peak FLOP/s for it", _tenth),
    Measure(SECONDS_PER_SAMPLE, _sample, "the science record names no rows", lambda value: f"{value:.3g}"),
    Measure(FINAL_LOSS, lambda _, training: Estimate(training.final_loss), form=lambda value: f"{value:.4f}"),
    Measure(ENERGY, lambda _, training: _maybe(training.energy_wh), "no power meter was read"),
    Measure(TOKENS, lambda _, training: Estimate(training.tokens), form=_whole),
    Measure(LOSS_TOKENS, lambda _, training: Estimate(training.loss_tokens), form=_whole),
    _planned(PLANNED_TOKENS_PER_S),
    _planned(PLANNED_HBM, _tenth),
    Measure(ADAPTER_SIZE, lambda variant, _: _maybe(variant.adapter_bytes, ADAPTER_SIZE.scale), form=_tenth, optional=True),
)


def _added(metric: Metric) -> Measure:
    return Measure(metric, lambda _, training: _maybe(training.added.get(metric.name), metric.scale), optional=True)


def training_quantities(results: Results) -> Iterator[Quantity]:
    """Every measure as a quantity of all variants. Times and rates of emulated runs stand only where there are no real ones."""
    timed = {v.name for v in results.timed}
    for measure in (*MEASURES, *map(_added, added_metrics())):
        found = {v.name: measure.of(v, v.training) for v in results.variants if v.training is not None and _says(measure, v, timed)}
        estimates = {name: estimate for name, estimate in found.items() if estimate is not None}
        if not measure.optional or estimates:
            cells = {v.name: _cell(measure, found.get(v.name), v, timed) for v in results.variants}
            metric = measure.metric
            yield Quantity(metric.name, TRAINING, metric.label, metric.unit, metric.how, metric.better, metric.aspect, cells, estimates)


def _says(measure: Measure, variant: Variant, timed: set[str]) -> bool:
    """Whether what `variant` measured says anything. An emulated run has no utilization and no energy of the hardware that it names."""
    if not variant.emulated or measure.metric.aspect != "speed" or measure.key in _COUNTS:
        return True
    return variant.name in timed and measure.key not in _OF_THE_HARDWARE


def _cell(measure: Measure, found: Estimate | None, variant: Variant, timed: set[str]) -> TableCell:
    if found is None and variant.training is not None and not _says(measure, variant, timed):
        return missing(EMULATED)
    if found is None:
        return missing(measure.why if variant.training is not None else NOT_TRAINED)
    source = variant.planned[measure.key][1] if measure.key in variant.planned else measure.metric.source
    interval = f"{measure.form(found.interval[0])} to {measure.form(found.interval[1])}" if found.interval else ""
    if variant.emulated and measure.metric.aspect == "speed" and measure.key not in _COUNTS:
        interval = "; ".join(words for words in (interval, "emulated") if words)
    return TableCell(measure.form(found.value), interval, source, found.value)
