"""Reading many runs from MLflow's tables: what is wanted, in parts, and what is done where the tables are not as they are known."""

import math
import sqlite3
from contextlib import closing

import pytest

from crossmesh.track.mlflow.local_store import MlflowDatabase
from crossmesh.track.mlflow.tracker import search_text
from crossmesh.track.run_log import TrackingError
from crossmesh.track.tracker import RunQuery

TABLES = """
CREATE TABLE experiments (experiment_id INTEGER, name TEXT, lifecycle_stage TEXT);
CREATE TABLE runs (run_uuid TEXT, name TEXT, status TEXT, start_time INTEGER, lifecycle_stage TEXT, experiment_id INTEGER);
CREATE TABLE tags (key TEXT, value TEXT, run_uuid TEXT);
CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);
CREATE TABLE latest_metrics (key TEXT, value REAL, is_nan INTEGER, run_uuid TEXT);
CREATE TABLE metrics (key TEXT, value REAL, is_nan INTEGER, step INTEGER, run_uuid TEXT);
"""
RUNS = 1203
"""More than one query names."""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a b%20.db"
    with closing(sqlite3.connect(path)) as store:
        store.executescript(TABLES)
        store.executemany("INSERT INTO experiments VALUES (?, ?, ?)", [(1, "it's ours", "active"), (2, "gone", "deleted")])
        ids = [f"{number:032x}" for number in range(RUNS)]
        rows = [
            (run, f"run {n}", "FINISHED" if n % 2 else "FAILED", n // 2, "deleted" if n == 7 else "active", 1) for n, run in enumerate(ids)
        ]
        store.executemany("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)", rows)
        store.executemany("INSERT INTO tags VALUES ('kind', ?, ?)", [("train" if n % 3 else "it's", run) for n, run in enumerate(ids)])
        store.executemany(
            "INSERT INTO params VALUES ('hardware', ?, ?)", [("cpu" if n < 1000 else "tpu", run) for n, run in enumerate(ids)]
        )
        store.executemany("INSERT INTO latest_metrics VALUES ('loss', ?, ?, ?)", [(n / 2, n == 5, run) for n, run in enumerate(ids)])
        for step in (2, 0, 1):
            values = [(n + step, (n, step) == (5, 1), step, run) for n, run in enumerate(ids)]
            store.executemany("INSERT INTO metrics VALUES ('loss', ?, ?, ?, ?)", values)
        store.commit()
    return path


def test_an_experiment_is_known_by_its_name_unless_it_is_deleted(file, tmp_path):
    store = MlflowDatabase(file)
    assert [store.experiment(name) for name in ("it's ours", "gone", "nothing")] == ["1", None, None]
    assert MlflowDatabase(tmp_path / "absent.db").experiment("it's ours") is None


def numbers(found):
    return [int(run.run_id, 16) for run in found]


def test_all_runs_are_found_newest_first_with_what_they_have(file):
    found = MlflowDatabase(file).search("1", RunQuery())
    assert numbers(found) == sorted(set(range(RUNS)) - {7}, key=lambda number: (-(number // 2), number))
    by_number = {int(run.run_id, 16): run for run in found}
    assert by_number[1202].name == "run 1202"
    assert by_number[1202].tags == {"kind": "train"}
    assert by_number[1202].metrics == {"loss": 601.0}
    assert by_number[3].params == {"hardware": "cpu"}
    assert by_number[3].params.get("nothing") is None
    assert math.isnan(by_number[5].metrics["loss"])


def test_what_is_wanted_is_all_that_is_found(file):
    store = MlflowDatabase(file)
    assert numbers(store.search("1", RunQuery({"kind": "it's"}, "FAILED", without={"hardware": "cpu"}))) == [
        n for n in range(1202, 999, -2) if n % 6 == 0
    ]
    assert numbers(store.search("1", RunQuery(prefix="0" * 30 + "0a"))) == [10]
    assert numbers(store.search("1", RunQuery(prefix="%"))) == []
    assert numbers(store.search("1", RunQuery(), limit=2)) == [1202, 1200]
    assert store.search("2", RunQuery()) == ()


def test_curves_and_means_of_many_runs(file):
    ids = [f"{number:032x}" for number in range(RUNS)]
    store = MlflowDatabase(file)
    curves = store.histories([*ids, "unknown"], "loss")
    assert len(curves) == RUNS
    assert curves[ids[1200]] == ((0, 1200.0), (1, 1201.0), (2, 1202.0))
    means = store.means(ids, "loss")
    assert (means[ids[1200]], means[ids[5]]) == (1201.0, 6.0)  # Of 5, NaN and 7.
    assert store.means(ids, "watts") == {}


def test_one_parameter_of_all_runs_is_read_at_once(file, monkeypatch):
    store = MlflowDatabase(file)
    found, asked = store.search("1", RunQuery()), []
    monkeypatch.setattr(store, "column", lambda runs, key: asked.append((len(runs), key)) or dict.fromkeys(runs, "x"))
    assert {run.params["hardware"] for run in found} == {"x"}
    assert asked == [(RUNS - 1, "hardware")]


@pytest.mark.parametrize("change", ["ALTER TABLE tags RENAME COLUMN value TO text", "DROP TABLE latest_metrics"])
def test_of_other_tables_nothing_is_said(file, change):
    with closing(sqlite3.connect(file)) as other:
        other.execute(change)
    store = MlflowDatabase(file)
    assert store.search("1", RunQuery()) is None
    assert store.histories(["0"], "loss") is None
    assert store.means(["0"], "loss") is None


def test_a_file_that_is_away_or_damaged_is_not_made(tmp_path):
    assert MlflowDatabase(tmp_path / "none.db").search("1", RunQuery()) is None
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "text.db").write_text("no database " * 100)
    assert MlflowDatabase(tmp_path / "text.db").search("1", RunQuery()) is None
    with pytest.raises(TrackingError, match="Could not read parameters"):
        MlflowDatabase(tmp_path / "text.db").params("0")


def test_nothing_is_written(file):
    before = file.read_bytes()
    with closing(MlflowDatabase(file)._opened()) as store, pytest.raises(sqlite3.OperationalError, match="readonly"):
        store.execute("DELETE FROM runs")
    assert file.read_bytes() == before


def test_the_same_in_the_language_of_mlflow():
    wanted = RunQuery({"crossmesh.kind": "train"}, "FINISHED", {"hardware.name": "cpu"}, "ab")
    assert search_text(wanted) == (
        "tags.`crossmesh.kind` = 'train' and attributes.status = 'FINISHED' and "
        "params.`hardware.name` != 'cpu' and attributes.run_id LIKE 'ab%'"
    )
    with pytest.raises(ValueError, match="contains a quote"):
        _ = search_text(RunQuery({"kind": "it's"}))
