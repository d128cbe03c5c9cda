from pathlib import Path

import pytest

from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.errors import InputError
from crossmesh.track.mlflow.client import store_address

STORAGE = StorageSpec(root="/data/cross mesh")


def test_default_is_sqlite_and_artifacts_under_the_root():
    address = store_address(TrackingSpec(), STORAGE)
    assert address.uri == "sqlite:////data/cross mesh/mlflow.db"
    assert address.database == Path("/data/cross mesh/mlflow.db")
    assert address.artifacts == "file:///data/cross%20mesh/artifacts"


@pytest.mark.parametrize("uri", ["http://10.0.0.1:5000", "https://host/prefix", "databricks"])
def test_a_server_decides_where_artifacts_go(uri):
    address = store_address(TrackingSpec(uri=uri), STORAGE)
    assert (address.uri, address.artifacts, address.database) == (uri, None, None)


def test_a_database_of_ours_gets_our_artifact_folder_and_hides_its_password():
    address = store_address(TrackingSpec(uri="postgresql+psycopg://me:secret@db/runs"), STORAGE)
    assert address.artifacts == "file:///data/cross%20mesh/artifacts"
    assert address.shown == "postgresql+psycopg://***@db/runs"


def test_a_kind_that_mlflow_does_not_know_is_refused():
    with pytest.raises(InputError, match=r"tracking\.uri='foo://bar' is of an unknown kind.*sqlite:////absolute"):
        store_address(TrackingSpec(uri="foo://bar"), STORAGE)


@pytest.mark.parametrize("uri", ["mlruns", "./mlruns", "sqlite:///mlflow.db", "sqlite://"])
def test_a_place_that_depends_on_the_working_folder_is_refused(uri):
    with pytest.raises(InputError, match=r"tracking\.uri=.*sqlite:////absolute"):
        store_address(TrackingSpec(uri=uri), STORAGE)


@pytest.mark.parametrize("root", ["/data/a?b", "/data/a%2Fb"])
def test_a_folder_that_no_sqlite_address_can_hold_is_refused_at_once(root):
    with pytest.raises(InputError, match=r"storage\.root=.* contains '[?%]'.*tracking\.uri"):
        store_address(TrackingSpec(), StorageSpec(root=root))
    assert store_address(TrackingSpec(uri="http://127.0.0.1:5000"), StorageSpec(root=root)).artifacts is None
