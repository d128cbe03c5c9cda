"""The tables of MLflow's local store, which `track/mlflow/local_store.py` reads."""

import sqlite3
from contextlib import closing

import pytest

from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.track.mlflow.client import open_client, open_experiment, tracking_place
from crossmesh.track.mlflow.local_store import _TABLES, LocalStore

pytestmark = pytest.mark.canary


def test_tables(tmp_path):
    place = tracking_place(TrackingSpec(), StorageSpec(str(tmp_path)))
    tmp_path.mkdir(exist_ok=True)
    experiment = open_experiment(place, open_client(place), "canary")
    with closing(sqlite3.connect(place.database)) as store:
        for table, columns in _TABLES.items():
            there = {row[1] for row in store.execute(f"PRAGMA table_info({table})")}
            assert columns <= there, f"{table} lacks {sorted(columns - there)}"
    assert LocalStore(place.database).experiment("canary") == experiment
