"""What a training run measured of itself, and what its plan said before: one entry a quantity."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from crossmesh.evaluate.estimates import FEWEST_RUNS, Estimate, rate_of_runs
from crossmesh.report.tables.cells import MEASURED, MODELLED, Cell, missing
from crossmesh.report.tables.quantity import HIGHER, LOWER, NEITHER, NOT_TRAINED, TRAINING, Quantity
from crossmesh.report.units import number_text
from crossmesh.report.variants import Results, TrainingSummary, Variant

PLANNED_SPEED, PLANNED_MEMORY = "planned_tokens_per_s", "planned_hbm_gib"
"""Keys of `Variant.planned`, and of their quantities."""
EMULATED = "emulated on CPU devices"
"""What stands where a time or a rate of an emulated run would say nothing."""
_OF_THE_HARDWARE = ("mfu", "energy_wh")
_COUNTS = ("tokens", "loss_tokens", "adapter_mib")
"""Measures that are no time and no rate."""


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _tenth(value: float) -> str:
    return f"{value:,.1f}"


@dataclass(frozen=True)
class Measure:
    """How a quantity is taken from a run that was trained, and how it is shown."""

    key: str
    label: str
    unit: str
    how: str
    better: str
    of: Callable[[Variant, TrainingSummary], Estimate | None]
    why: str = "not recorded by this run"
    """What stands where there is none."""
    source: str = MEASURED
    aspect: str = "speed"
    form: Callable[[float], str] = number_text
    optional: bool = False
    """Left out when no run has it."""


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


def _planned(key: str) -> Callable[[Variant, TrainingSummary], Estimate | None]:
    return lambda variant, _: Estimate(variant.planned[key][0]) if key in variant.planned else None


MEASURES = (
    Measure(
        "wall_clock_s",
        "Wall clock",
        "s",
        "all steps, compilation included; loading, checkpoints and export are not",
        LOWER,
        lambda _, training: Estimate(training.seconds),
    ),
    Measure(
        "tokens_per_s",
        "Training speed",
        "real tokens/s",
        "padding not counted; the median of the steps, or with three repeats their mean, its interval over the repeats",
        HIGHER,
        _speed,
        why="not measured: no steady step on all slices of its mesh",
    ),
    Measure(
        "padded_tokens_per_s",
        "Computed tokens",
        "tokens/s",
        "padding included",
        NEITHER,
        lambda _, training: _maybe(training.padded_tokens_per_s),
    ),
    Measure(
        "mfu",
        "MFU",
        "% of peak",
        "FLOP that the real tokens need once, as the plan models them, over measured time and published peak",
        HIGHER,
        lambda _, training: _maybe(training.mfu, 100.0),
        why="the catalogue has no peak FLOP/s for it",
        source="measured / modelled",
        form=_tenth,
    ),
    Measure(
        "seconds_per_sample",
        "Time of a sample",
        "s/sample",
        "wall clock over rows trained on",
        LOWER,
        _sample,
        why="the science record names no rows",
        form=lambda value: f"{value:.3g}",
    ),
    Measure(
        "final_loss",
        "Loss, last step",
        "nats/token",
        "mean over the loss tokens of the last step's batch",
        LOWER,
        lambda _, training: Estimate(training.final_loss),
        aspect="quality",
        form=lambda value: f"{value:.4f}",
    ),
    Measure(
        "energy_wh",
        "Energy",
        "Wh",
        "of the accelerators, from their power while it trained",
        LOWER,
        lambda _, training: _maybe(training.energy_wh),
        why="no power meter was read",
    ),
    Measure("tokens", "Tokens trained on", "real tokens", "padding not counted", NEITHER, lambda _, one: Estimate(one.tokens), form=_whole),
    Measure(
        "loss_tokens",
        "Tokens in the loss",
        "tokens",
        "answer tokens under the loss mask",
        NEITHER,
        lambda _, one: Estimate(one.loss_tokens),
        form=_whole,
    ),
    Measure(
        PLANNED_SPEED,
        "Planned speed",
        "real tokens/s",
        "by the plan, before the run",
        NEITHER,
        _planned(PLANNED_SPEED),
        why="not planned",
        source=MODELLED,
        optional=True,
    ),
    Measure(
        PLANNED_MEMORY,
        "Planned memory of a chip",
        "GiB",
        "by the plan, before the run",
        NEITHER,
        _planned(PLANNED_MEMORY),
        why="not planned",
        source=MODELLED,
        form=_tenth,
        optional=True,
    ),
    Measure(
        "adapter_mib",
        "Adapter size",
        "MiB",
        "files of the exported folder",
        NEITHER,
        lambda variant, _: _maybe(variant.adapter_bytes, 2**-20),
        form=_tenth,
        optional=True,
    ),
)


def training_quantities(results: Results) -> Iterator[Quantity]:
    """Every measure as a quantity of all variants. Times and rates of emulated runs stand only where there are no real ones."""
    timed = {v.name for v in results.timed}
    for measure in MEASURES:
        found = {v.name: measure.of(v, v.training) for v in results.variants if v.training is not None and _says(measure, v, timed)}
        estimates = {name: estimate for name, estimate in found.items() if estimate is not None}
        if not measure.optional or estimates:
            cells = {v.name: _cell(measure, found.get(v.name), v, timed) for v in results.variants}
            quality = (measure.label, measure.unit, measure.how, measure.better, measure.aspect)
            yield Quantity(measure.key, TRAINING, *quality, cells, estimates)


def _says(measure: Measure, variant: Variant, timed: set[str]) -> bool:
    """Whether what `variant` measured says anything. An emulated run has no utilization and no energy of the hardware that it names."""
    if not variant.emulated or measure.aspect != "speed" or measure.key in _COUNTS:
        return True
    return variant.name in timed and measure.key not in _OF_THE_HARDWARE


def _cell(measure: Measure, found: Estimate | None, variant: Variant, timed: set[str]) -> Cell:
    if found is None and variant.training is not None and not _says(measure, variant, timed):
        return missing(EMULATED)
    if found is None:
        return missing(measure.why if variant.training is not None else NOT_TRAINED)
    source = variant.planned[measure.key][1] if measure.key in variant.planned else measure.source
    interval = f"{measure.form(found.interval[0])} to {measure.form(found.interval[1])}" if found.interval else ""
    if variant.emulated and measure.aspect == "speed" and measure.key not in _COUNTS:
        interval = "; ".join(words for words in (interval, "emulated") if words)
    return Cell(measure.form(found.value), interval, source, found.value)
