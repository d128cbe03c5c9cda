"""Which evaluation and which benchmark belong to which training: by the digest of the adapter, or as stages of one pipeline.

Pure but for asking how an evaluation examined.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from crossmesh.report.gate.selection import BENCHMARK, EVALUATE, parent_of, run_kind
from crossmesh.track.tracked_run import TAG_ADAPTER, TAG_BASE, TrackedRun

_BASE = "base"


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
    owned = {kind: _Owned(candidates, kind) for kind in (EVALUATE, BENCHMARK)}
    evaluations = {one.run_id: owned[EVALUATE].of(one) for one in trainings}
    ways = Counter(way for found in evaluations.values() for way in {examined(run) for run in found})
    measured: dict[str, list[TrackedRun]] = {}
    for one in trainings:
        found = sorted(evaluations[one.run_id], key=lambda run: -ways[examined(run)])[:1]
        measured[one.run_id] = [*found, *owned[BENCHMARK].of(one)[:1]]
    used = {run.run_id for found in measured.values() for run in found}
    known = {examined(run) for found in measured.values() for run in found if run_kind(run) == EVALUATE}
    bases = {one.tags[TAG_BASE] for one in trainings if TAG_BASE in one.tags}
    parents = {parent_of(one) for one in trainings} - {""}
    base = next((run for run in candidates if _examines_base(run, bases, parents) and examined(run) in known), None)
    alone = tuple(run for run in given if run.run_id not in used and (base is None or run.run_id != base.run_id))
    return Linked(measured, base, alone)


class _Owned:
    """Runs of one kind by what they measured: the digest of an adapter, or for one without a digest its place in a pipeline."""

    def __init__(self, candidates: Sequence[TrackedRun], kind: str) -> None:
        self._by_adapter: dict[str, list[TrackedRun]] = {}
        self._by_place: dict[tuple[str, str], list[TrackedRun]] = {}
        self._order: dict[str, int] = {}
        for run in candidates:
            if run_kind(run) != kind:
                continue
            self._order[run.run_id] = len(self._order)
            if TAG_ADAPTER in run.tags:
                self._by_adapter.setdefault(run.tags[TAG_ADAPTER], []).append(run)
            elif parent_of(run) and kind == EVALUATE:
                self._by_place.setdefault((parent_of(run), run.subject), []).append(run)

    def of(self, training: TrackedRun) -> list[TrackedRun]:
        """Those of `training`, in the order of the candidates."""
        by_digest = self._by_adapter.get(training.tags.get(TAG_ADAPTER, ""), [])
        by_place = self._by_place.get((parent_of(training), training.backend), [])
        return sorted([*by_digest, *by_place], key=lambda run: self._order[run.run_id])


def _examines_base(run: TrackedRun, bases: Set[str], parents: Set[str]) -> bool:
    """Whether `run` examined the base of a training, or stands beside one in its pipeline."""
    if run_kind(run) != EVALUATE or TAG_ADAPTER in run.tags:
        return False
    return run.tags.get(TAG_BASE) in bases or (run.subject == _BASE and parent_of(run) in parents)
