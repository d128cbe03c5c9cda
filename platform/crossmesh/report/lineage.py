"""Which evaluation and which benchmark of MLflow belong to which training: by the digest of the adapter, or as stages of one pipeline.

Pure but for asking how an evaluation examined.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from crossmesh.report.selection import BENCHMARK, EVALUATE, kind_of, parent_of
from crossmesh.track.tracker import TAG_ADAPTER, TAG_BASE, TrackedRun

_BASE = f"{EVALUATE} base"


@dataclass(frozen=True)
class Linked:
    """What was measured of what."""

    measured: Mapping[str, Sequence[TrackedRun]] = field(default_factory=dict)
    """By id of a training: at most one evaluation and one benchmark."""
    base: TrackedRun | None = None
    """An evaluation of the base of the trainings."""
    alone: tuple[TrackedRun, ...] = ()
    """Runs that were asked for by name and belong to none of the trainings, or to one that has another."""

    def of(self, training: TrackedRun) -> Sequence[TrackedRun]:
        """The runs that measured `training`."""
        return self.measured.get(training.run_id, ())


def link(
    trainings: Sequence[TrackedRun], given: Sequence[TrackedRun], recent: Sequence[TrackedRun], examined: Callable[[TrackedRun], str]
) -> Linked:
    """Give every training its evaluation and its benchmark.

    Those asked for by name come first, then the newest. Of several evaluations one is taken whose way of examining most trainings share,
    so that they can be compared.

    Args:
        trainings: the trainings of a comparison.
        given: evaluations and benchmarks that were asked for by name.
        recent: all others that may belong to a training, newest first.
        examined: the fingerprint of how an evaluation examined.
    """
    ids = {run.run_id for run in given}
    candidates = [*given, *(run for run in recent if run.run_id not in ids)]
    evaluations = {one.run_id: _own(one, candidates, EVALUATE) for one in trainings}
    ways = Counter(way for found in evaluations.values() for way in {examined(run) for run in found})
    measured: dict[str, list[TrackedRun]] = {}
    for one in trainings:
        found = sorted(evaluations[one.run_id], key=lambda run: -ways[examined(run)])[:1]
        measured[one.run_id] = [*found, *_own(one, candidates, BENCHMARK)[:1]]
    used = {run.run_id for found in measured.values() for run in found}
    known = {examined(run) for found in measured.values() for run in found if kind_of(run) == EVALUATE}
    base = next((run for run in candidates if _examines_base(run, trainings) and examined(run) in known), None)
    return Linked(measured, base, tuple(run for run in given if run.run_id not in used and run is not base))


def _own(training: TrackedRun, candidates: Sequence[TrackedRun], kind: str) -> list[TrackedRun]:
    return [run for run in candidates if kind_of(run) == kind and _belongs(run, training)]


def _belongs(run: TrackedRun, training: TrackedRun) -> bool:
    """Whether `run` measured the adapter of `training`; one without a digest is known by its place in a pipeline."""
    if TAG_ADAPTER in run.tags:
        return run.tags[TAG_ADAPTER] == training.tags.get(TAG_ADAPTER)
    return bool(parent_of(run)) and parent_of(run) == parent_of(training) and run.name == f"{EVALUATE} {training.name}"


def _examines_base(run: TrackedRun, trainings: Sequence[TrackedRun]) -> bool:
    if kind_of(run) != EVALUATE or TAG_ADAPTER in run.tags:
        return False
    bases = {one.tags[TAG_BASE] for one in trainings if TAG_BASE in one.tags}
    parents = {parent_of(one) for one in trainings} - {""}
    return run.tags.get(TAG_BASE) in bases or (run.name == _BASE and parent_of(run) in parents)
