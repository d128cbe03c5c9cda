"""What own runs measured against what the model says of the same steps: a factor for every kind of chip and backend.

Only finished runs of this tracking experiment count, each with the rows that it really had. The factor is a median over runs that may
differ in everything else, so their range is shown beside it.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from statistics import median

from crossmesh.errors import CrossmeshError
from crossmesh.plan.figures import modelled
from crossmesh.plan.lengths import filling
from crossmesh.plan.point import Point, training_point
from crossmesh.spec.compose import restore_spec
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.track.tracker import Tracker

_SEARCHED, _READ = 200, 8
"""Newest training runs looked through, and of these the newest that are read for each slice and backend."""
_RATE, _TOKENS, _EFFICIENCY = "train/tokens_per_s_steady", "train/tokens", "train/packing_efficiency"


@dataclass(frozen=True)
class Calibration:
    """Measured over modelled seconds of a step."""

    chip: str
    backend: str
    factor: float
    """The median."""
    low: float
    high: float
    runs: int

    @property
    def text(self) -> str:
        """For a person."""
        spread = f", {self.low:.2f} to {self.high:.2f}" if self.runs > 1 else ""
        runs = "1 own run" if self.runs == 1 else f"{self.runs} own runs"
        return f"Step times on {self.chip} with {self.backend} are the model's times {self.factor:.2f}, as {runs} measured{spread}."


Calibrations = Mapping[tuple[str, str], Calibration]
"""By chip and backend."""


def calibrations(measured: Iterable[tuple[str, str, float]]) -> Calibrations:
    """Sum up (chip, backend, measured over modelled seconds) of single runs."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for chip, backend, ratio in measured:
        ratios.setdefault((chip, backend), []).append(ratio)
    return {key: Calibration(*key, median(found), min(found), max(found), len(found)) for key, found in ratios.items()}


def own_calibrations(tracker: Tracker) -> Calibrations:
    """Those of the finished training runs that `tracker` has. Raises `TrackingError` when the store cannot be reached."""
    return calibrations(_measured(tracker))


def _measured(tracker: Tracker) -> Iterator[tuple[str, str, float]]:
    read: dict[tuple[str, str], int] = {}
    for run in tracker.recent("train", _SEARCHED):
        slice_, complete = run.params.get("hardware.name", "cpu"), {_RATE, _TOKENS, _EFFICIENCY} <= run.metrics.keys()
        key = (slice_, run.name)
        if slice_ == "cpu" or not complete or read.get(key, 0) == _READ:
            continue
        read[key] = read.get(key, 0) + 1
        with suppress(CrossmeshError):  # A run of an older version, of a removed model, or whose files are gone, measures nothing for us.
            spec = restore_spec(tracker.read_json(run.run_id, "records/spec.json"))
            point = as_it_ran(training_point(spec), spec, run.metrics)
            seconds = point.filling.tokens / run.metrics[_RATE]
            yield point.chip.name, point.backend, seconds / modelled(point).step_s


def as_it_ran(point: Point, spec: ExperimentSpec, metrics: Mapping[str, float]) -> Point:
    """`point` with the real tokens, and the sequences, that a step of the finished run of `spec` had on average."""
    tokens = metrics[_TOKENS] / spec.optim.last_step
    sequences = float(spec.batch.size)
    if spec.packing.mode == "step":
        together = point.micro * point.mesh.batch_ways
        sequences = float(together * max(1, ceil(tokens / (metrics[_EFFICIENCY] * point.length) / together - 1e-6)))
    mean = spec.plan.mean_tokens if spec.packing.mode == "stream" else tokens / spec.batch.size
    rows = filling(replace(spec, plan=replace(spec.plan, mean_tokens=mean, p99_tokens=0.0)), point.model.windows)
    return replace(point, filling=replace(rows, sequences=sequences, tokens=tokens))
