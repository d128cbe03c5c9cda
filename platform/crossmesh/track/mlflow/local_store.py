"""Reads many runs at once from the sqlite file of a local MLflow store: read-only, in a few queries, however many runs there are.

MLflow's own search makes an object of every parameter of every run: ten thousand runs take minutes and gigabytes. This file knows MLflow's
tables and nothing else: where it does not find what it knows (another version, a file that is away), it says so by `None`, and the caller
asks MLflow. Parameters, which MLflow never changes once they are logged, are read when they are asked for, one key of all runs at a time.
"""

import math
import sqlite3
from collections.abc import ItemsView, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar, overload

from crossmesh.track.run_log import TrackingError
from crossmesh.track.tracked_run import TrackedRun
from crossmesh.track.tracker import VERSIONS, RunQuery

_TABLES = {
    "experiments": {"experiment_id", "name", "lifecycle_stage"},
    "runs": {"run_uuid", "name", "status", "start_time", "lifecycle_stage", "experiment_id"},
    "tags": {"run_uuid", "key", "value"},
    "params": {"run_uuid", "key", "value"},
    "latest_metrics": {"run_uuid", "key", "value", "is_nan"},
    "metrics": {"run_uuid", "key", "value", "step", "is_nan"},
}
"""What is read, and must be there."""
_PATIENCE_S = 30.0
"""How long a query waits for a writer."""
_Other = TypeVar("_Other")
_AT_ONCE = 500
"""Runs that one query names."""


class MlflowDatabase:
    """The sqlite file of a store that is opened without a server."""

    def __init__(self, database: Path) -> None:
        """`database`: the file; it is opened anew, read-only, for every question."""
        self._database = database
        self._known: bool | None = None

    def experiment(self, name: str) -> str | None:
        """The id of the active experiment of this name; None where there is none, or where the file is not as it is known here."""
        try:
            with closing(self._opened()) as store:
                if not self._understood(store):
                    return None
                query = "SELECT experiment_id FROM experiments WHERE name = ? AND lifecycle_stage = 'active'"
                row = store.execute(query, (name,)).fetchone()
        except sqlite3.Error:
            return None
        return str(row[0]) if row else None

    def search(self, experiment: str, query: RunQuery, limit: int = 0) -> tuple[TrackedRun, ...] | None:
        """The active runs of an experiment that `query` looks for, newest first; None where the file is not as it is known here."""
        try:
            with closing(self._opened()) as store:
                if not self._understood(store):
                    return None
                store.execute("BEGIN")  # One state of the file for all queries.
                return self._found(store, experiment, query, limit)
        except sqlite3.Error:
            return None

    def histories(self, runs: Sequence[str], key: str) -> dict[str, tuple[tuple[int, float], ...]] | None:
        """The values of a metric as (step, value), by step, of each run that has it."""
        by_run: dict[str, list[tuple[int, float]]] = {}
        rows = self._ask("SELECT run_uuid, step, value, is_nan FROM metrics WHERE key = ? AND run_uuid IN", runs, (key,))
        if rows is None:
            return None
        for run, step, value, is_nan in rows:
            by_run.setdefault(run, []).append((int(step), _number(value, is_nan)))
        return {run: tuple(sorted(values)) for run, values in by_run.items()}

    def means(self, runs: Sequence[str], key: str) -> dict[str, float] | None:
        """The mean of all values of a metric, by run that has it."""
        query = "SELECT run_uuid, AVG(CASE WHEN is_nan THEN NULL ELSE value END) FROM metrics WHERE key = ? AND run_uuid IN"
        rows = self._ask(query, runs, (key,), " GROUP BY run_uuid")
        return None if rows is None else {run: math.nan if value is None else float(value) for run, value in rows}

    def column(self, runs: Sequence[str], key: str) -> dict[str, str]:
        """One parameter of `runs`, by run that has it. Raises `TrackingError` where the file is away."""
        rows = self._params("SELECT run_uuid, value FROM params WHERE key = ?", key)
        asked, same = set(runs), _Shared()
        return {run: same(value) for run, value in rows if run in asked}

    def params(self, run: str) -> dict[str, str]:
        """All parameters of one run. Raises `TrackingError` where the file is away."""
        return dict(self._params("SELECT key, value FROM params WHERE run_uuid = ?", run))

    def _params(self, query: str, value: str) -> list[tuple[str, str]]:
        try:
            with closing(self._opened()) as store:
                return store.execute(query, (value,)).fetchall()
        except sqlite3.Error as error:
            raise TrackingError(f"Could not read parameters from {self._database}: {error}. It could be read a moment ago.") from error

    def _opened(self) -> sqlite3.Connection:
        address = f"{self._database.absolute().as_uri()}?mode=ro"
        return sqlite3.connect(address, uri=True, timeout=_PATIENCE_S, isolation_level=None)

    def _understood(self, store: sqlite3.Connection) -> bool:
        """Whether the tables have all columns that are read."""
        if self._known is None:
            self._known = all(
                columns <= {row[1] for row in store.execute(f"PRAGMA table_info({name})")} for name, columns in _TABLES.items()
            )
        return self._known

    def _found(self, store: sqlite3.Connection, experiment: str, query: RunQuery, limit: int) -> tuple[TrackedRun, ...]:
        condition, values = _condition(experiment, query)
        statement = f"SELECT run_uuid, name, status FROM runs AS r WHERE {condition} ORDER BY start_time DESC, run_uuid LIMIT ?"  # noqa: S608  # Text of ours.
        rows = store.execute(statement, (*values, limit or -1)).fetchall()
        ids, same = [run for run, *_ in rows], _Shared()
        tags: dict[str, dict[str, str]] = {run: {} for run in ids}
        metrics: dict[str, dict[str, float]] = {run: {} for run in ids}
        own = f"SELECT run_uuid, key, value FROM tags WHERE key NOT GLOB '{VERSIONS}*' AND run_uuid IN"  # noqa: S608  # Text of ours.
        for run, key, value in _of_runs(store, own, ids):
            tags[run][same(key)] = same(value)
        for run, key, value, is_nan in _of_runs(store, "SELECT run_uuid, key, value, is_nan FROM latest_metrics WHERE run_uuid IN", ids):
            metrics[run][same(key)] = _number(value, is_nan)
        params = _Columns(self, ids)
        return tuple(
            TrackedRun(run, same(name or ""), same(status), tags[run], _Params(params, run), metrics[run]) for run, name, status in rows
        )

    def _ask(self, query: str, runs: Sequence[str], before: tuple[str, ...], after: str = "") -> list[Any] | None:
        """The rows of a query that ends with IN, for `runs`; None where the file is not as it is known here."""
        try:
            with closing(self._opened()) as store:
                return list(_of_runs(store, query, runs, before, after)) if self._understood(store) else None
        except sqlite3.Error:
            return None


class _Columns:
    """Parameters of the runs of one search, a key at a time."""

    def __init__(self, store: MlflowDatabase, runs: Sequence[str]) -> None:
        self._store, self._runs = store, runs
        self._read: dict[str, dict[str, str]] = {}

    def get(self, run: str, key: str) -> str | None:
        if key not in self._read:
            self._read[key] = self._store.column(self._runs, key)
        return self._read[key].get(run)

    def all_of(self, run: str) -> dict[str, str]:
        return self._store.params(run)


class _Params(Mapping[str, str]):
    """The parameters of one run."""

    __slots__ = ("_columns", "_run")

    def __init__(self, columns: _Columns, run: str) -> None:
        self._columns, self._run = columns, run

    def __getitem__(self, key: str) -> str:
        value = self._columns.get(self._run, key)
        if value is None:
            raise KeyError(key)
        return value

    @overload
    def get(self, key: str, /) -> str | None: ...
    @overload
    def get(self, key: str, /, default: str | _Other) -> str | _Other: ...
    def get(self, key: str, /, default: Any = None) -> Any:
        """As of any mapping, without an exception for each key that a run does not have."""
        value = self._columns.get(self._run, key)
        return default if value is None else value

    def items(self) -> ItemsView[str, str]:
        """All of them, in one query."""
        return self._columns.all_of(self._run).items()

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns.all_of(self._run))

    def __len__(self) -> int:
        return len(self._columns.all_of(self._run))

    def __repr__(self) -> str:
        return repr(self._columns.all_of(self._run))


class _Shared(dict[str, str]):
    """Equal texts of many runs as one object."""

    def __missing__(self, text: str) -> str:
        self[text] = text
        return text

    def __call__(self, text: str) -> str:
        return self[text]


def _of_runs(store: sqlite3.Connection, query: str, runs: Sequence[str], before: tuple[str, ...] = (), after: str = "") -> Iterator[Any]:
    """The rows of `query`, which ends with IN, for `runs`, some at once."""
    for start in range(0, len(runs), _AT_ONCE):
        part = runs[start : start + _AT_ONCE]
        yield from store.execute(f"{query} ({', '.join('?' * len(part))}){after}", (*before, *part))


def _condition(experiment: str, query: RunQuery) -> tuple[str, tuple[str, ...]]:
    """What `query` means in SQL, and its values."""
    parts: list[tuple[str, tuple[str, ...]]] = [("r.experiment_id = ? AND r.lifecycle_stage = 'active'", (experiment,))]
    has = "EXISTS (SELECT 1 FROM {} AS t WHERE t.key = ? AND t.run_uuid = r.run_uuid AND t.value {} ?)"
    parts += [(has.format("tags", "="), item) for item in query.tags.items()]
    parts += [(has.format("params", "!="), item) for item in query.without.items()]
    parts += [("r.status = ?", (query.status,))] if query.status else []
    parts += [("substr(r.run_uuid, 1, length(?)) = ?", (query.prefix, query.prefix))] if query.prefix else []
    return " AND ".join(text for text, _ in parts), tuple(value for _, values in parts for value in values)


def _number(value: float, is_nan: int) -> float:
    return math.nan if is_nan else float(value)
