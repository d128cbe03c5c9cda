"""Several trackers as one: the first keeps the runs that crossmesh reads, all others log the same.

A run has another id in each: the first run's tags name those of the others, so that a resumed job finds them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.track.masking import mask_secrets
from crossmesh.track.run_log import ModelVersion, NewRun, RunLog, UsedDataset
from crossmesh.track.tracked_run import TAG_MIRROR, TAG_PARENT, TrackedRun
from crossmesh.track.tracker import RunQuery, Tracker


class CompositeTracker(Tracker):
    """`first` and, by name, `others`. One of those that cannot start a run stops the job; one that fails later is reported once."""

    def __init__(
        self,
        tracking: TrackingSpec,
        storage: StorageSpec,
        first: Tracker,
        others: Mapping[str, RunLog],
        say: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(tracking, storage, say)
        self._first, self._others = first, others
        self._ids: dict[str, dict[str, str]] = {}
        """Ids of a run in the others, by the first one's."""
        self._failed: set[tuple[str, str]] = set()

    @property
    def uri(self) -> str:
        """Where the first tracker keeps the runs."""
        return self._first.uri

    @property
    def title(self) -> str:
        """As of the first."""
        return self._first.title

    @property
    def keeps_runs(self) -> bool:
        """As of the first."""
        return self._first.keeps_runs

    @property
    def ui_command(self) -> str:
        """As of the first."""
        return self._first.ui_command

    @property
    def opens_slowly(self) -> bool:
        """As of the first."""
        return self._first.opens_slowly

    def open_store(self) -> None:
        """As of the first."""
        self._first.open_store()

    def create_run(self, run: NewRun) -> str:
        """Start the run in all."""
        run_id = self._first.create_run(run)
        self._mirror(run_id, run, tuple(self._others))
        return run_id

    def _mirror(self, run_id: str, run: NewRun, names: Sequence[str]) -> None:
        """Start the run in the trackers of these names, under the run that is above it there."""
        above = self._ids_of(run.tags[TAG_PARENT]) if TAG_PARENT in run.tags else {}
        ids = self._ids.setdefault(run_id, {})
        for name in names:
            tags = {**run.tags, f"{TAG_MIRROR}first": run_id, **({TAG_PARENT: above[name]} if name in above else {})}
            ids[name] = self._others[name].create_run(replace(run, tags=tags))
        self._first.log_tags(run_id, {f"{TAG_MIRROR}{name}": ids[name] for name in names})

    def resume_run(self, run_id: str) -> float | None:
        """Continue the run in all; where it is lost it is started again."""
        started = self._first.resume_run(run_id)
        if started is None:
            return None
        ids = self._ids_of(run_id)
        lost = [name for name in self._others if name not in ids or self._others[name].resume_run(ids[name]) is None]
        if lost:
            known = self._first.run(run_id)
            self._mirror(run_id, NewRun(known.name, known.tags, known.params), lost)
        return started

    def _ids_of(self, run_id: str) -> dict[str, str]:
        """The ids of a run in the others, as far as it has any."""
        if run_id not in self._ids:
            tags = self._first.run(run_id).tags
            self._ids[run_id] = {name: tags[key] for name in self._others if (key := f"{TAG_MIRROR}{name}") in tags}
        return self._ids[run_id]

    @contextmanager
    def _tolerated(self, name: str, run_id: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  # Of whichever library: a second copy must not end a training.
            if (name, run_id) not in self._failed:
                self._failed.add((name, run_id))
                text = mask_secrets(" ".join(str(error).split()))[:300]
                self._say(f"The tracker {name!r} does not take a record of run {run_id} ({type(error).__name__}: {text}). The job goes on.")

    def _each(self, run_id: str, call: Callable[[RunLog, str], object]) -> None:
        """Call `call` with each of the others and the run's id there."""
        for name, other_id in self._ids_of(run_id).items():
            with self._tolerated(name, run_id):
                call(self._others[name], other_id)

    def log_metrics(self, run_id: str, values: Mapping[str, float], step: int, milliseconds: int) -> None:
        """In all."""
        self._first.log_metrics(run_id, values, step, milliseconds)
        self._each(run_id, lambda other, there: other.log_metrics(there, values, step, milliseconds))

    def log_tags(self, run_id: str, values: Mapping[str, str]) -> None:
        """In all."""
        self._first.log_tags(run_id, values)
        self._each(run_id, lambda other, there: other.log_tags(there, values))

    def log_artifact(self, run_id: str, source: Path, folder: str) -> None:
        """In all."""
        self._first.log_artifact(run_id, source, folder)
        self._each(run_id, lambda other, there: other.log_artifact(there, source, folder))

    def log_text(self, run_id: str, path: str, text: str) -> None:
        """In all."""
        self._first.log_text(run_id, path, text)
        self._each(run_id, lambda other, there: other.log_text(there, path, text))

    def log_dataset(self, run_id: str, dataset: UsedDataset) -> None:
        """In all."""
        self._first.log_dataset(run_id, dataset)
        self._each(run_id, lambda other, there: other.log_dataset(there, dataset))

    def register_model(self, run_id: str, version: ModelVersion) -> None:
        """In all."""
        self._first.register_model(run_id, version)
        self._each(run_id, lambda other, there: other.register_model(there, version))

    def end_run(self, run_id: str, status: str | None) -> None:
        """In all, the first one last: a run that is finished there is complete everywhere."""
        self._each(run_id, lambda other, there: other.end_run(there, status))
        self._first.end_run(run_id, status)

    def search(self, query: RunQuery, limit: int = 0) -> tuple[TrackedRun, ...]:
        """As the first finds them."""
        return self._first.search(query, limit)

    def run(self, run_id: str) -> TrackedRun:
        """As the first has it."""
        return self._first.run(run_id)

    def has_run(self, run_id: str) -> bool:
        """As the first has it."""
        return self._first.has_run(run_id)

    def histories(self, run_ids: Sequence[str], key: str) -> dict[str, tuple[tuple[int, float], ...]]:
        """As the first has them."""
        return self._first.histories(run_ids, key)

    def means(self, run_ids: Sequence[str], key: str) -> dict[str, float]:
        """As the first has them."""
        return self._first.means(run_ids, key)

    def read_json(self, run_id: str, path: str) -> Any:
        """As the first has it."""
        return self._first.read_json(run_id, path)

    def download(self, run_id: str, path: str, folder: Path) -> Path:
        """As the first has it."""
        return self._first.download(run_id, path, folder)
