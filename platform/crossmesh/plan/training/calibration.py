"""What own runs measured against what the model says of the same steps: a factor from runs that are near what is planned.

Near: the same kind of chip, backend, precision and kind of work, and a model of up to twice or half the size. Three such runs are the
least; a run on emulated devices measured no chip, and a ratio that no error of the model explains is left out. What the factor rests on is
part of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from statistics import median

from crossmesh.config.compose import restore_spec
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.errors import CrossmeshError
from crossmesh.metrics import PACKING_EFFICIENCY, TOKENS, TOKENS_PER_S
from crossmesh.plan.figures import modelled
from crossmesh.plan.point import TrainingPoint, training_point
from crossmesh.plan.training.lengths import filling
from crossmesh.track.repeats import STEADY_MISSING
from crossmesh.track.tracked_run import TrackedRun
from crossmesh.track.tracker import Tracker

FEWEST = 3
"""Runs that a factor needs: a single one may have measured a busy machine."""
NEAR = 2.0
"""Most that the parameters of a measured model are a multiple, or a part, of the planned one's."""
PLAUSIBLE = (0.5, 4.0)
"""Measured over modelled seconds outside of these are no error of a roofline: something else was measured."""
_READ = 8
"""Newest runs that are read of each slice, backend, model and kind of work."""
_RATE, _TOKENS, _EFFICIENCY = TOKENS_PER_S.key, TOKENS.key, PACKING_EFFICIENCY.step


@dataclass(frozen=True)
class Work:
    """What runs must have in common for one to say something of another's time."""

    chip: str
    backend: str
    trained: str
    """`lora` or `full`."""
    dtype: str
    quantization: str

    @property
    def text(self) -> str:
        """For a person."""
        quantized = "" if self.quantization == "none" else f" over {self.quantization}"
        trained = "LoRA" if self.trained == "lora" else "full fine-tuning"
        return f"{trained}{quantized} in {self.dtype} on {self.chip} with {self.backend}"


@dataclass(frozen=True)
class Measured:
    """One run."""

    run_id: str
    work: Work
    parameters: int
    """Of its model."""
    ratio: float
    """Measured over modelled seconds of a step."""


@dataclass(frozen=True)
class Calibration:
    """Measured over modelled seconds of a step, and what that rests on."""

    work: Work
    factor: float
    """The median."""
    low: float
    high: float
    runs: tuple[str, ...]
    """Ids of runs, newest first."""
    smallest: int
    """Parameters of the smallest model among them."""
    largest: int
    left_out: int = 0
    """Near runs with a ratio that is not plausible."""

    @property
    def text(self) -> str:
        """For a person."""
        sizes = _size(self.smallest) if self.smallest == self.largest else f"{_size(self.smallest)} to {_size(self.largest)}"
        ids = ", ".join(run[:8] for run in self.runs[:_READ])
        more = f" and {len(self.runs) - _READ} more" if len(self.runs) > _READ else ""
        out = f"; {self.left_out} left out, outside {PLAUSIBLE[0]:g} to {PLAUSIBLE[1]:g}" if self.left_out else ""
        return (
            f"Calibrated: step times of {self.work.text} are the model's times {self.factor:.2f}, the median of {len(self.runs)} own runs "
            f"({self.low:.2f} to {self.high:.2f}; models of {sizes} parameters; runs {ids}{more}{out}). plan.calibrate=false leaves it out."
        )


def _size(parameters: int) -> str:
    return f"{parameters / 1e9:.3g}B" if parameters >= 1e9 else f"{parameters / 1e6:.3g}M"


def work_of(point: TrainingPoint) -> Work:
    """The kind of work that `point` is."""
    return Work(point.chip.name, point.backend, "full" if point.model.full else "lora", point.spec.dtype, point.spec.quantization)


def calibration_of(point: TrainingPoint, measured: Sequence[Measured]) -> Calibration | None:
    """The calibration of `point` by the runs near it; None where they are too few."""
    work, size = work_of(point), point.model.parameters
    near = [one for one in measured if one.work == work and size / NEAR <= one.parameters <= size * NEAR]
    sound = [one for one in near if PLAUSIBLE[0] <= one.ratio <= PLAUSIBLE[1]]
    if len(sound) < FEWEST:
        return None
    ratios, sizes = [one.ratio for one in sound], [one.parameters for one in sound]
    runs = tuple(one.run_id for one in sound)
    return Calibration(work, median(ratios), min(ratios), max(ratios), runs, min(sizes), max(sizes), len(near) - len(sound))


def own_measurements(tracker: Tracker) -> tuple[Measured, ...]:
    """What the finished training runs of `tracker` measured, newest first. Raises `TrackingError` when the store cannot be reached."""
    return tuple(_measurements(tracker))


def _measurements(tracker: Tracker) -> Iterator[Measured]:
    read: dict[tuple[str, ...], int] = {}
    for run in tracker.recent("train", without={"hardware.name": "cpu"}):
        complete = {_RATE, _TOKENS, _EFFICIENCY} <= run.metrics.keys()
        key = _alike(run)
        if run.emulated or run.params.get("hardware.name", "cpu") == "cpu" or not complete or read.get(key, 0) == _READ:
            continue
        with suppress(CrossmeshError):  # A run of an older version, of a removed model, or whose files are gone, measures nothing for us.
            if tracker.read_json(run.run_id, "records/system.json").get("emulated"):
                continue
            spec = restore_spec(tracker.read_json(run.run_id, "records/spec.json"))
            if spec.backend.compile != "none" or run.metrics.get(STEADY_MISSING):  # The model knows eager steps, on all slices.
                continue
            point = as_it_ran(training_point(spec), spec, run.metrics)
            seconds = point.filling.tokens / run.metrics[_RATE]
            read[key] = read.get(key, 0) + 1
            yield Measured(run.run_id, work_of(point), point.model.parameters, seconds / modelled(point).step_s)


def _alike(run: TrackedRun) -> tuple[str, ...]:
    """What of a run's parameters tells how it counts; of many runs with the same, the newest are enough."""
    names = ("hardware.name", "model.weights", "model.dtype", "model.quantization")
    return (run.backend, str(run.params.get("lora.rank") == "0"), *(run.params.get(name, "") for name in names))


def as_it_ran(point: TrainingPoint, spec: ExperimentSpec, metrics: Mapping[str, float]) -> TrainingPoint:
    """`point` with the real tokens, the sequences and their width that a step of the finished run of `spec` had on average."""
    tokens = metrics[_TOKENS] / spec.optim.last_step
    computed, sequences = tokens / metrics[_EFFICIENCY], float(spec.batch.size)
    if spec.packing.mode == "step":
        together = point.micro * point.mesh.dp_size
        sequences = float(together * max(1, ceil(computed / point.length / together - 1e-6)))
    mean = spec.plan.mean_tokens if spec.packing.mode == "stream" else tokens / spec.batch.size
    rows = filling(replace(spec, plan=replace(spec.plan, mean_tokens=mean, p99_tokens=0.0)), point.model.windows)
    width = min(point.length, round(computed / sequences))
    return replace(point, filling=replace(rows, sequences=sequences, tokens=tokens, widths=((width, 1.0),)))
