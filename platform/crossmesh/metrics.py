"""The metrics of a run, each declared once: its name, its unit, which way is better, its source and the key it is tracked under.

Training logs them, calibration, views and reports read them, all by the declarations of this module. A package adds a metric of finished
trainings by an entry point in the group `crossmesh.metrics`: it is computed from the run's totals when the training ends (`added_totals`),
and `compare` shows it beside ours.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite

from crossmesh.errors import InputError
from crossmesh.plugins import Registry

HIGHER, LOWER, NEITHER = "higher", "lower", ""
MEASURED, COMPILED, MODELLED, PUBLISHED, DERIVED = "measured", "compiled", "modelled", "published", "measured x published"
_ASPECTS = ("quality", "speed", "cost")


@dataclass(frozen=True)
class Metric:
    """One metric.

    Raises `InputError` for a direction or an aspect that does not exist.
    """

    name: str
    """Of the report's quantity, and in its JSON."""
    label: str
    """Heading of its row or column."""
    unit: str
    how: str = ""
    """How it is measured, in words."""
    better: str = NEITHER
    """`HIGHER`, `LOWER` or `NEITHER`."""
    key: str = ""
    """Of its final value where it is tracked; empty: not logged."""
    step: str = ""
    """Key of its value at each step; empty: it has none."""
    source: str = MEASURED
    aspect: str = "speed"
    """What a comparison needs to be alike in: `quality`, `speed`, `cost`, or `serving` for ours of servers."""
    scale: float = 1.0
    """What the value is multiplied by where people read it."""
    compute: Callable[[Mapping[str, float]], float | None] | None = None
    """Of an added metric: its value from the final values of a run by their keys; None where they do not say."""

    def __post_init__(self) -> None:
        """Check what other packages declare."""
        if self.better not in (HIGHER, LOWER, NEITHER):
            raise InputError(f"The metric {self.name!r} has better={self.better!r}. Allowed: {HIGHER!r}, {LOWER!r}, {NEITHER!r}.")
        if self.compute is not None and (self.aspect not in _ASPECTS or not self.key):
            raise InputError(f"The metric {self.name!r} needs a `key` and one of the aspects {', '.join(_ASPECTS)}.")


FINAL_LOSS = Metric(
    "final_loss",
    "Loss, last step",
    "nats/token",
    "mean over the loss tokens of the last step's batch",
    LOWER,
    "train/final_loss",
    "train/loss",
    aspect="quality",
)
TOKENS_PER_S = Metric(
    "tokens_per_s",
    "Training speed",
    "real tokens/s",
    "padding not counted; the median of the steps, or with three repeats their mean, its interval over the repeats",
    HIGHER,
    "train/tokens_per_s_steady",
    "train/tokens_per_s",
)
PADDED_TOKENS_PER_S = Metric(
    "padded_tokens_per_s",
    "Computed tokens",
    "tokens/s",
    "padding included",
    NEITHER,
    "train/padded_tokens_per_s_steady",
    "train/padded_tokens_per_s",
)
WALL_CLOCK = Metric(
    "wall_clock_s",
    "Wall clock",
    "s",
    "all steps, compilation included; loading, checkpoints and export are not",
    LOWER,
    "train/seconds",
    "train/step_seconds",
)
SECONDS_PER_SAMPLE = Metric("seconds_per_sample", "Time of a sample", "s/sample", "wall clock over rows trained on", LOWER)
MFU = Metric(
    "mfu",
    "MFU",
    "% of peak",
    "FLOP that the real tokens need once, as the plan models them, over measured time and published peak",
    HIGHER,
    source="measured / modelled",
    scale=100.0,
)
ENERGY = Metric("energy_wh", "Energy", "Wh", "of the accelerators, from their power while it trained", LOWER)
TOKENS = Metric("tokens", "Tokens trained on", "real tokens", "padding not counted", NEITHER, "train/tokens", "train/tokens")
LOSS_TOKENS = Metric("loss_tokens", "Tokens in the loss", "tokens", "answer tokens under the loss mask", NEITHER, "train/loss_tokens")
ADAPTER_SIZE = Metric("adapter_mib", "Adapter size", "MiB", "files of the exported folder", scale=2**-20)
RENTED = Metric("rented_s", "Rented time", "s", "wall clock less the share of slices that were missing", key="train/rented_seconds")
MISSING_SLICES = Metric(
    "steady_missing_slices",
    "Missing slices",
    "slices",
    "how many slices of its mesh the steps of the rate lacked",
    key="train/steady_missing_slices",
)
GRAD_NORM = Metric("grad_norm", "Gradient norm", "", step="train/grad_norm")
LEARNING_RATE = Metric("learning_rate", "Learning rate", "", step="train/learning_rate")
PACKING_EFFICIENCY = Metric("packing_efficiency", "Packing efficiency", "share", step="train/packing_efficiency")
SLICES = Metric("slices", "Slices", "slices", step="train/slices")
PLANNED_TOKENS_PER_S = Metric(
    "planned_tokens_per_s",
    "Planned speed",
    "real tokens/s",
    "by the plan, before the run",
    key="plan/tokens_per_s",
    source=MODELLED,
)
PLANNED_HBM = Metric(
    "planned_hbm_gib",
    "Planned memory of a chip",
    "GiB",
    "by the plan, before the run",
    key="plan/hbm_bytes_per_chip",
    source=MODELLED,
    scale=2**-30,
)
PLANNED_MFU = Metric("planned_mfu", "Planned MFU", "share of peak", key="plan/mfu", source=MODELLED)
USD_PER_HOUR = Metric("usd_per_hour", "Price of the hardware, an hour", "USD", source=PUBLISHED, aspect="cost")
USD = Metric("usd", "Cost of the run", "USD", "price times the time of all steps", LOWER, "train/usd", source=DERIVED, aspect="cost")
USD_PER_MILLION_TOKENS = Metric(
    "usd_per_million_tokens", "Cost of a million tokens", "USD", "real tokens trained on", LOWER, source=DERIVED, aspect="cost"
)
OUTPUT_TOKENS_PER_S = Metric("output_tokens_per_s", "output", "tokens/s", better=HIGHER, aspect="serving")
TTFT_P50 = Metric("ttft_p50_s", "first token", "ms, median", better=LOWER, aspect="serving", scale=1000.0)
TTFT_P99 = Metric("ttft_p99_s", "first token", "ms, 99th percentile", better=LOWER, aspect="serving", scale=1000.0)
TPOT_P50 = Metric("tpot_p50_s", "per further token", "ms, median", better=LOWER, aspect="serving", scale=1000.0)
ITL_P99 = Metric("itl_p99_s", "between tokens", "ms, 99th percentile", better=LOWER, aspect="serving", scale=1000.0)
GOODPUT = Metric("goodput_requests_per_s", "goodput", "requests/s within the SLO", better=HIGHER, aspect="serving")
USD_PER_MILLION_OUTPUT_TOKENS = Metric(
    "usd_per_million_output_tokens", "USD per million output tokens", "USD", better=LOWER, source=DERIVED, aspect="serving"
)

DECLARED = {one.name: one for one in tuple(globals().values()) if isinstance(one, Metric)}
"""All metrics of crossmesh by name."""
GROUP = "crossmesh.metrics"


def added_metrics() -> tuple[Metric, ...]:
    """The metrics that installed packages add.

    Raises `InputError` for an entry point that is no `Metric` with a `compute`, and for a name or key that is taken.
    """
    registry, keys, added = Registry[Metric](GROUP, "metric", {}), {key for one in DECLARED.values() for key in (one.key, one.step)}, []
    for name in registry.names:
        metric = registry.load(name)
        if not isinstance(metric, Metric) or metric.compute is None:
            raise InputError(f"The entry point {name!r} of {GROUP!r} has the wrong type: expected a Metric with `compute`, got {metric!r}.")
        if metric.name in DECLARED or metric.key in keys:
            raise InputError(f"The metric {metric.name!r} ({metric.key}) of an installed package exists already. Give it another name.")
        keys.add(metric.key)
        added.append(metric)
    return tuple(added)


def added_totals(totals: Mapping[str, float]) -> dict[str, float]:
    """The finite values of added metrics by key, computed from the final values of a run by theirs.

    Raises `InputError` when a metric cannot be computed from them.
    """
    values = {one.key: _computed(one, totals) for one in added_metrics()}
    return {key: value for key, value in values.items() if value is not None and isfinite(value)}


def _computed(metric: Metric, totals: Mapping[str, float]) -> float | None:
    try:
        value = metric.compute(totals) if metric.compute else None
        return None if value is None else float(value)
    except Exception as error:
        raise InputError(
            f"The metric {metric.name!r} of an installed package could not be computed ({type(error).__name__}: {error}). The training is "
            "stored: repair or uninstall that package, and run the same command again."
        ) from error
