"""The tables of MLflow's local store, which `track/mlflow/local_store.py` reads."""

import sqlite3
from contextlib import closing

import pytest

from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.track.mlflow.client import open_client, open_experiment, store_address
from crossmesh.track.mlflow.local_store import _TABLES, MlflowDatabase

pytestmark = pytest.mark.canary


def test_tables(tmp_path):
    address = store_address(TrackingSpec(), StorageSpec(str(tmp_path)))
    tmp_path.mkdir(exist_ok=True)
    experiment = open_experiment(address, open_client(address), "canary")
    with closing(sqlite3.connect(address.database)) as store:
        for table, columns in _TABLES.items():
            there = {row[1] for row in store.execute(f"PRAGMA table_info({table})")}
            assert columns <= there, f"{table} lacks {sorted(columns - there)}"
    assert MlflowDatabase(address.database).experiment("canary") == experiment
